"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voice_clone import compute
from voice_clone.appended_text import Appended
from voice_clone.autoregressive.generator import Generator, load_generator
from voice_clone.autoregressive.stack.native_stack import rotary_arrays
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.talker import MoreText, TalkerRequest
from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts.checkpoint import MODEL, Checkpoint
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.family import BASE
from voice_clone.families.qwen3_tts.networks.native_talker import TEXT_TABLE, NativeTalker
from voice_clone.families.qwen3_tts.networks.prompt_reader import prefill_length
from voice_clone.families.qwen3_tts.prompt import ARTIFACT, CODES, EMBEDDING, ROLE_LENGTH, Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.families.qwen3_tts.text import Tokenizer
from voice_clone.lru_cache import Origin
from voice_clone.mapped_weights import MappedWeights
from voice_clone.native.arrays import Array
from voice_clone.settings import Settings, TalkerSettings
from voice_clone.speakers.store import KnownVoices
from voice_clone.speech import has_words
from voice_clone.stages.known_voices import Artifacts, known_prompts
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.requests import FrameBudget, check_plan

if TYPE_CHECKING:  # a native talker does without torch
    from voice_clone.families.qwen3_tts.networks.talker import Talker

PREFIX = "talker."  # of the talker's tensors in the file
MIN_FRAMES = 192  # that even the shortest text may take: 15.4 s
FRAMES_PER_TOKEN = 12


class Qwen3TTSTalker:
    """The talker of a checkpoint with the memory of its streams.

    Args:
        source: runs the talker.
        config, tokenizer: of the checkpoint.
    """

    chunk_frames = BASE.chunk_frames

    def __init__(self, source: Generator[Prompt], config: Qwen3TTSConfig, tokenizer: Tokenizer) -> None:
        self.source = source
        self.frame_seconds = config.codec.decode_upsample_rate / config.codec.output_sample_rate
        self.part_characters = config.sampling.part_characters
        self._config = config
        self._tokenizer = tokenizer

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[Prompt]]:
        """A stream of the prompt that `Qwen3TTSPrompt` has made."""
        check_plan(BASE, tensors, knobs, options)  # the kinds differ in what their checkpoints know
        opening = _opening(tensors.get("open_text"))
        whole_first = opening is None and self._config.kind != "base"  # as the official package calls `generate`
        whole_first = bool(knobs.get("non_streaming_mode", whole_first))
        prompt = read_prompt(tensors, whole_first, text_open=opening is not None)
        text = None
        if opening is not None:
            room, max_frames = self.source.max_length - prefill_length(prompt), knobs.get("max_frames")
            limit = partial(frame_budget(self._config).limit, max_frames=max_frames, room=room)
            before = 1 + len(prompt.reference_codes) - len(prompt.reference_ids)
            text = Qwen3TTSText(self._tokenizer, self._config.talker.text_vocab_size, limit, before)
            prompt = replace(prompt, text_ids=text.take(text.draft(opening, last=False)).ids)
        request = build_request(prompt, knobs, options, self._config, self.source.max_length)
        return StreamPlan(request, prompt.reference_codes, text=text)

    def example(self, reference_frames: int, max_frames: int) -> TalkerRequest[Prompt]:
        """A request of zeros, for the warm-up."""
        talker = self._config.talker
        clones = self._config.kind == "base"
        fits = max(0, min(reference_frames, self.source.max_length - max_frames - 16)) if clones else 0
        prompt = Prompt(
            np.zeros(ROLE_LENGTH, np.int32),
            np.zeros(8, np.int32),
            np.zeros(talker.hidden_size if clones else 0, np.float32),
            np.zeros(8 if fits else 0, np.int32),
            np.zeros((fits, talker.num_code_groups), np.int32),
            speaker_id=next(iter(self._config.speakers.values()), None),
        )
        # top_p below 1 takes the longest way through the sampler.
        return TalkerRequest(prompt, SamplingParameters(seed=0, top_p=0.9, subtalker_top_p=0.9), max_frames)

    def known_prompts(self, voices: KnownVoices) -> Iterator[tuple[Origin, Prompt]]:
        """Of each stored voice with a transcript; their language is left open."""
        if self._config.kind != "base":
            return iter(())
        role_ids = self._tokenizer.role_ids

        def prompt(transcript: str, artifacts: Artifacts) -> Prompt:
            reference_ids = self._tokenizer.reference_ids(transcript)
            return Prompt(role_ids, role_ids[-1:], artifacts[EMBEDDING], reference_ids, artifacts[CODES])

        return known_prompts(voices, ARTIFACT, [CODES, EMBEDDING], prompt)


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
    limit = frame_budget(config).limit(len(prompt.text_ids), knobs.get("max_frames"), room)
    return TalkerRequest(prompt, sampling, *limit, must_read=True)


def frame_budget(config: Qwen3TTSConfig) -> FrameBudget:
    """The frames that a text is granted."""
    return FrameBudget(MIN_FRAMES, FRAMES_PER_TOKEN, config.sampling.max_new_tokens)


def load_network(given: Settings) -> tuple[NativeTalker | Talker, Qwen3TTSConfig]:
    """The talker with its code predictor, native on a CPU, and the configuration."""
    settings = TalkerSettings.of(given)
    if compute.device(settings) != "cpu":
        return load_torch_network(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    return _native_talker(settings, checkpoint), checkpoint.config


def load_torch_network(given: Settings) -> tuple[Talker, Qwen3TTSConfig]:
    """The talker as torch's network on any device, and the configuration."""
    from voice_clone.families.qwen3_tts.networks.talker import Talker
    from voice_clone.stages.loading import TalkerPart, empty, load_talker_network

    settings = TalkerSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    parts = [TalkerPart("", PREFIX, layers=(), in_file=(TEXT_TABLE,))]  # of 151,936 rows, of which a prompt reads few
    talker = load_talker_network(
        settings,
        empty(partial(Talker, checkpoint.config)),
        checkpoint,
        MODEL,
        parts,
        family="qwen3_tts",
        sizes=checkpoint.config.talker,
    )
    return talker, checkpoint.config


def _native_talker(settings: TalkerSettings, checkpoint: Checkpoint) -> NativeTalker:
    sizes, precision = checkpoint.config.talker, compute.precision(settings)
    name = f"qwen3_tts talker {precision}"
    packed = compute.packed_file(settings, name, checkpoint.identity(MODEL), sizes, any_size=True)

    def tables(layout: StackConfig, positions: int) -> Sequence[Array]:
        kept = compute.packed_file(settings, f"rotary tables of {positions} positions", [], layout, any_size=True)
        found = kept.part("cos and sin")(partial(rotary_arrays, layout, positions))
        kept.keep()
        return found

    weights = MappedWeights(checkpoint.folder, MODEL)

    def read(name: str, shape: tuple[int, ...]) -> Array:
        return weights.read(PREFIX + name, shape)

    table = read(TEXT_TABLE, (sizes.text_vocab_size, sizes.text_hidden_size))
    return NativeTalker(checkpoint.config, precision, read, table, packed, tables)


def load_talker(given: Settings) -> Qwen3TTSTalker:
    """The talker stage as the settings ask for it."""
    settings = TalkerSettings.of(given)
    talker, config = load_network(given)
    frame_rate = config.codec.output_sample_rate / config.codec.decode_upsample_rate
    generator = load_generator(settings, talker, frame_rate, BASE.prefix_bytes)
    return Qwen3TTSTalker(generator, config, Tokenizer(settings.checkpoint_dir))
