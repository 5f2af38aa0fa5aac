"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voice_clone import compute
from voice_clone.appended_text import Appended
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import MoreText, TalkerRequest
from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts.checkpoint import MODEL, Checkpoint
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig, load_config
from voice_clone.families.qwen3_tts.family import BASE
from voice_clone.families.qwen3_tts.networks.native_talker import TEXT_TABLE, NativeTalker
from voice_clone.families.qwen3_tts.networks.prompt_reader import prefill_length
from voice_clone.families.qwen3_tts.prompt import CODES, EMBEDDING, ROLE_LENGTH, Prompt, Tokenizer
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.family import FrameBudget
from voice_clone.lru_cache import Origin
from voice_clone.mapped_weights import MappedWeights
from voice_clone.native.arrays import Array
from voice_clone.settings import TalkerSettings
from voice_clone.speakers.store import KnownVoices
from voice_clone.speech import has_words
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.requests import check_plan, granted_frames
from voice_clone.stages.talker import CardTalker

if TYPE_CHECKING:  # a native talker does without torch
    from voice_clone.families.qwen3_tts.networks.talker import Talker

PREFIX = "talker."  # of the talker's tensors in the file


class Qwen3TTSTalker(CardTalker[Qwen3TTSConfig, Callable[[], Tokenizer], Prompt]):
    """The talker of a checkpoint of any kind.

    It opens the tokenizer when it first needs it: for an appended text or a stored voice. The prompt stage has checked
    its files.
    """

    card, prompt, sampling = BASE, Prompt, SamplingParameters  # the kinds differ in what their checkpoints know

    @staticmethod
    def read(folder: Path) -> tuple[Qwen3TTSConfig, Callable[[], Tokenizer]]:
        return load_config(folder), cache(partial(Tokenizer, folder))

    def __init__(self, source: Generator[Prompt], config: Qwen3TTSConfig, tokenizer: Callable[[], Tokenizer]) -> None:
        super().__init__(source, config, tokenizer)
        self.part_characters = config.sampling.part_characters

    @classmethod
    def frame_rate(cls, config: Qwen3TTSConfig) -> float:
        return config.codec.output_sample_rate / config.codec.decode_upsample_rate

    @classmethod
    def fill_network(cls, settings: TalkerSettings, config: Qwen3TTSConfig, tokenizer: Any) -> Any:
        if compute.device(settings) == "cpu":
            return _native_talker(settings, Checkpoint(settings.checkpoint_dir))
        return cls.torch_network(settings, config, tokenizer)

    @classmethod
    def torch_network(cls, settings: TalkerSettings, config: Qwen3TTSConfig, tokenizer: Any) -> Any:
        return _torch_talker(settings, Checkpoint(settings.checkpoint_dir))

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[Prompt]]:
        """With what follows the text, if it is still written."""
        check_plan(self.card, tensors, knobs, options)
        opening = _opening(tensors.get("open_text"))
        whole_first = opening is None and self.config.kind != "base"  # as the official package calls `generate`
        whole_first = bool(knobs.get("non_streaming_mode", whole_first))
        prompt = read_prompt(tensors, whole_first, text_open=opening is not None)
        text = None
        if opening is not None:
            room, max_frames = self.source.max_length - prefill_length(prompt), knobs.get("max_frames")
            limit = partial(granted_frames, frame_budget(self.config), max_frames=max_frames, room=room)
            before = 1 + len(prompt.reference_codes) - len(prompt.reference_ids)
            text = Qwen3TTSText(self.tokenizer(), self.config.talker.text_vocab_size, limit, before)
            prompt = replace(prompt, text_ids=text.take(text.draft(opening, last=False)).ids)
        request = build_request(prompt, knobs, options, self.config, self.source.max_length)
        return StreamPlan(request, prompt.reference_codes, text=text)

    def example(self, reference_frames: int, max_frames: int) -> TalkerRequest[Prompt]:
        talker = self.config.talker
        clones = self.config.kind == "base"
        fits = max(0, min(reference_frames, self.source.max_length - max_frames - 16)) if clones else 0
        prompt = Prompt(
            np.zeros(ROLE_LENGTH, np.int32),
            np.zeros(8, np.int32),
            np.zeros(talker.hidden_size if clones else 0, np.float32),
            np.zeros(8 if fits else 0, np.int32),
            np.zeros((fits, talker.num_code_groups), np.int32),
            speaker_id=next(iter(self.config.speakers.values()), None),
        )
        # top_p below 1 takes the longest way through the sampler.
        return TalkerRequest(prompt, SamplingParameters(seed=0, top_p=0.9, subtalker_top_p=0.9), max_frames)

    def prompt_of(self, transcript: str, artifacts: Artifacts) -> Prompt:
        """Its language is left open."""
        tokenizer = self.tokenizer()
        role_ids, reference_ids = tokenizer.role_ids, tokenizer.reference_ids(transcript)
        return Prompt(role_ids, role_ids[-1:], artifacts[EMBEDDING], reference_ids, artifacts[CODES])

    def known_prompts(self, voices: KnownVoices) -> Iterator[tuple[Origin, Prompt]]:
        return super().known_prompts(voices) if self.config.kind == "base" else iter(())


Limit = Callable[[int], tuple[int, bool]]
"""Tokens of a text -> `TalkerRequest.max_frames` and `budgeted`."""


@dataclass(frozen=True, eq=False)
class TextDraft:
    """A piece of text before it is appended."""

    appended: Appended
    last: bool
    blank: bool

    def __len__(self) -> int:
        return len(self.appended.ids)


class Qwen3TTSText:
    """A `voice_clone.stages.protocols.OpenText`.

    Args:
        tokenizer: of the checkpoint.
        vocabulary: ids that the talker knows.
        limit: the frames that a text is granted.
        before: tokens that the talker has read with its first frame; negative while it reads a longer transcript.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, limit: Limit, before: int) -> None:
        self._rules = tokenizer.appended
        self._vocabulary = vocabulary
        self._limit = limit
        self._before = before
        self._tail = tokenizer.begin_text()
        self._ends: list[int] = []  # of the tokens, in characters
        self.blank = True

    @property
    def tokens(self) -> int:
        return len(self._ends)

    @property
    def before_audio(self) -> int:
        return max(0, self._before)

    def draft(self, text: str, last: bool) -> TextDraft:
        appended = self._rules.append(self._tail, text, last)
        if appended.ids.size and int(appended.ids.max()) >= self._vocabulary:
            raise InvalidArgument("the `text` has a token that the model does not know; remove control tokens")
        return TextDraft(appended, last, not has_words(text))

    def take(self, draft: TextDraft, cut: bool = False) -> MoreText:
        self._tail = draft.appended.tail
        self._ends += draft.appended.ends.tolist()
        self.blank = self.blank and draft.blank
        frames, budgeted = self._limit(self.tokens)
        return MoreText(draft.appended.ids, draft.last, frames, budgeted, cut)

    def read(self, frames: int) -> int:
        return max(0, min(self._before + frames - 1, self.tokens)) if frames else 0

    def characters(self, tokens: int) -> int:
        return self._ends[tokens - 1] if tokens else 0


def read_prompt(tensors: Arrays, non_streaming_mode: bool = False, text_open: bool = False) -> Prompt:
    """The prompt in the tensors that the prompt stage has made.

    Raises:
        InvalidArgument: a tensor has a wrong shape or type.
    """
    numbers = {}
    for name in ("language_id", "speaker_id"):
        if tensors[name].size != 1:
            raise InvalidArgument(f"prompt: {name} must have one element")
        number = int(tensors[name].reshape(-1)[0])
        numbers[name] = None if number < 0 else number
    return Prompt(
        tensors["role_ids"],
        tensors["text_ids"],
        tensors["speaker_embedding"],
        tensors["reference_ids"],
        tensors["reference_codes"],
        **numbers,
        instruct_ids=tensors["instruct_ids"],
        non_streaming_mode=non_streaming_mode,
        text_open=text_open,
    )


def _opening(open_text: NDArray[Any] | None) -> str | None:
    """The first piece of a text that is still written; None: the text is whole."""
    try:
        return None if open_text is None else open_text.astype(np.uint8).tobytes().decode()
    except UnicodeDecodeError:
        raise InvalidArgument("prompt: open_text must be the bytes of UTF-8 text") from None


def build_request(
    prompt: Prompt, knobs: Mapping[str, Any], options: Mapping[str, Any], config: Qwen3TTSConfig, max_length: int
) -> TalkerRequest[Prompt]:
    """A request with the caller's knobs and options over the checkpoint's defaults.

    Args:
        knobs: those of `voice_clone.request_fields.KNOBS` that are given, `seed` among them.
        options: checked against the card.
        max_length: positions of a slot.

    Raises:
        InvalidArgument: a value is out of range.
    """
    fields = SamplingParameters.__dataclass_fields__
    given = {name: value for name, value in {**knobs, **options}.items() if name in fields}
    sampling = replace(SamplingParameters.from_defaults(config.sampling, seed=0), **given)
    room = max_length - prefill_length(prompt)
    limit = granted_frames(frame_budget(config), len(prompt.text_ids), knobs.get("max_frames"), room)
    return TalkerRequest(prompt, sampling, *limit, must_read=True)


def frame_budget(config: Qwen3TTSConfig) -> FrameBudget:
    """The frames that a text is granted."""
    assert BASE.budget is not None
    return BASE.budget._replace(most=config.sampling.max_new_tokens)


def _torch_talker(settings: TalkerSettings, checkpoint: Checkpoint) -> Talker:
    from voice_clone.families.qwen3_tts.networks.talker import Talker
    from voice_clone.stages.loading import TalkerPart, empty, load_talker_network

    parts = [TalkerPart("", PREFIX, layers=(), in_file=(TEXT_TABLE,))]  # of 151,936 rows, of which a prompt reads few
    return load_talker_network(
        settings,
        empty(partial(Talker, checkpoint.config)),
        checkpoint,
        MODEL,
        parts,
        family=BASE.name,
        sizes=checkpoint.config.talker,
    )


def _native_talker(settings: TalkerSettings, checkpoint: Checkpoint) -> NativeTalker:
    sizes, precision = checkpoint.config.talker, compute.precision(settings)
    name = f"qwen3_tts talker {precision}"
    packed = compute.packed_file(settings, name, checkpoint.identity(MODEL), sizes, any_size=True)
    weights = MappedWeights(checkpoint.folder, MODEL)

    def read(name: str, shape: tuple[int, ...]) -> Array:
        return weights.read(PREFIX + name, shape)

    table = read(TEXT_TABLE, (sizes.text_vocab_size, sizes.text_hidden_size))
    return NativeTalker(checkpoint.config, precision, read, table, packed)


load_network, load_talker = Qwen3TTSTalker.load_network, Qwen3TTSTalker.load
load_torch_network = Qwen3TTSTalker.load_torch_network
