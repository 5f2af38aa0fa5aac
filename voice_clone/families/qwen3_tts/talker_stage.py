"""The prompt to codec frames: a `voice_clone.stages.TalkerStage`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from voice_clone import compute
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.loading import load_generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts.checkpoint import MODEL, Checkpoint
from voice_clone.families.qwen3_tts.config import CHUNK_FRAMES, Qwen3TTSConfig
from voice_clone.families.qwen3_tts.known_voices import known_prompts
from voice_clone.families.qwen3_tts.networks.native import use_native_code
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.open_text import Qwen3TTSText
from voice_clone.families.qwen3_tts.options import OPTIONS
from voice_clone.families.qwen3_tts.prefill import prefill_length
from voice_clone.families.qwen3_tts.prompt import ROLE_LENGTH, Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.families.qwen3_tts.text import Tokenizer
from voice_clone.lru_cache import Origin
from voice_clone.settings import Settings, TalkerSettings
from voice_clone.speakers.store.protocol import KnownVoices
from voice_clone.speech import check_options
from voice_clone.stages import Arrays, StreamPlan

TENSORS = ("role_ids", "text_ids", "speaker_embedding", "reference_ids", "reference_codes", "language_id")
TEXT_EMBEDDING = "model.text_embedding.weight"  # 151,936 rows, of which a prompt needs a few: it stays in the file
LAYERS = ("model.layers.", "code_predictor.model.layers.")
MIN_FRAME_BUDGET = 192  # frames (15.4 s) that even the shortest text may take
FRAMES_PER_TOKEN = 12  # a text of n tokens rarely takes more than 12 n frames


class Qwen3TTSTalker:
    """The talker of a checkpoint with the memory of its streams.

    Args:
        source: runs the talker.
        config, tokenizer: of the checkpoint.
    """

    chunk_frames = CHUNK_FRAMES

    def __init__(self, source: Generator[Prompt], config: Qwen3TTSConfig, tokenizer: Tokenizer) -> None:
        self.source = source
        self.frame_seconds = config.codec.decode_upsample_rate / config.codec.output_sample_rate
        self._config = config
        self._tokenizer = tokenizer

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[Prompt]]:
        """A stream of the prompt that `Qwen3TTSPrompt` has made."""
        check_options(options, OPTIONS)
        opening = _opening(tensors.get("open_text"))
        prompt = read_prompt(tensors, bool(knobs.get("non_streaming_mode", False)), text_open=opening is not None)
        limit = partial(frame_limit, prompt, knobs.get("max_frames"), self._config, self.source.max_length)
        text = None
        if opening is not None:
            before = 1 + len(prompt.reference_codes) - len(prompt.reference_ids)
            text = Qwen3TTSText(self._tokenizer, self._config.talker.text_vocab_size, limit, before)
            prompt = replace(prompt, text_ids=text.take(text.draft(opening, last=False)).ids)
        request = build_request(prompt, knobs, options, self._config, self.source.max_length)
        return StreamPlan(request, prompt.reference_codes, text=text)

    def example(self, reference_frames: int, max_frames: int) -> TalkerRequest[Prompt]:
        """A request of zeros, for the warm-up."""
        talker = self._config.talker
        fits = max(0, min(reference_frames, self.source.max_length - max_frames - 16))
        prompt = Prompt(
            np.zeros(ROLE_LENGTH, np.int32),
            np.zeros(8, np.int32),
            np.zeros(talker.hidden_size, np.float32),
            np.zeros(8 if fits else 0, np.int32),
            np.zeros((fits, talker.num_code_groups), np.int32),
        )
        # top_p below 1 takes the longest way through the sampler.
        return TalkerRequest(prompt, SamplingParameters(seed=0, top_p=0.9, subtalker_top_p=0.9), max_frames)

    def known_prompts(self, voices: KnownVoices) -> Iterator[tuple[Origin, Prompt]]:
        """Of each voice on disk with a transcript."""
        return known_prompts(voices, self._tokenizer)


def read_prompt(tensors: Arrays, non_streaming_mode: bool = False, text_open: bool = False) -> Prompt:
    """The prompt in the tensors that the prompt stage has made.

    Raises:
        InvalidArgument: a tensor is missing or has a wrong shape or type.
    """
    for name in TENSORS:
        if name not in tensors:
            raise InvalidArgument(f"prompt lacks {name}; the prompt stage makes it")
    if tensors["language_id"].size != 1:
        raise InvalidArgument("prompt: language_id must have one element")
    language = int(tensors["language_id"].reshape(-1)[0])
    return Prompt(
        tensors["role_ids"],
        tensors["text_ids"],
        tensors["speaker_embedding"],
        tensors["reference_ids"],
        tensors["reference_codes"],
        language_id=None if language < 0 else language,
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
        knobs: those of `voice_clone.stages.KNOBS` that are given, `seed` among them.
        options: checked by `check_options`.
        max_length: positions of a slot.

    Raises:
        InvalidArgument: a value is out of range.
    """
    fields = SamplingParameters.__dataclass_fields__
    given = {name: value for name, value in {**knobs, **options}.items() if name in fields}
    sampling = replace(SamplingParameters.from_defaults(config.sampling, seed=0), **given)
    limit = frame_limit(prompt, knobs.get("max_frames"), config, max_length, len(prompt.text_ids))
    return TalkerRequest(prompt, sampling, *limit)


def frame_limit(
    prompt: Prompt, max_frames: int | None, config: Qwen3TTSConfig, max_length: int, text_tokens: int
) -> tuple[int, bool]:
    """`max_frames` and `budgeted` of a request with so many tokens of text.

    Args:
        max_frames: the caller's; they must fit the slot. Without them the text's budget is cut to what fits.
        max_length: positions of a slot.

    Raises:
        InvalidArgument: `max_frames` is < 1.
    """
    budget = frame_budget(text_tokens, max_frames, config.sampling.max_new_tokens)
    if max_frames is None:
        budget = max(1, min(budget, max_length - prefill_length(prompt)))
    return budget, budget != max_frames


def frame_budget(text_tokens: int, max_frames: int | None, default_max: int) -> int:
    """Frames after which a stream ends: with the finish `length` if they are the caller's, else with `budget`.

    Raises:
        InvalidArgument: `max_frames` is < 1.
    """
    if max_frames is not None and max_frames < 1:
        raise InvalidArgument(f"max_frames is {max_frames}; it must be at least 1")
    return min(max(MIN_FRAME_BUDGET, FRAMES_PER_TOKEN * text_tokens), max_frames or default_max)


def load_network(given: Settings) -> tuple[Talker, Qwen3TTSConfig]:
    """The talker with its code predictor, native on a CPU, and the configuration."""
    settings = TalkerSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    dtype, device = compute.dtype(settings), torch.device(compute.device(settings))
    native = device.type == "cpu"
    with torch.device("meta"):
        talker = Talker(checkpoint.config)
    precision, sizes = compute.precision(settings), checkpoint.config.talker
    # An exact matrix is packed faster than a file of its size is written and read.
    worth = native and precision in ("int8", "int4")
    packed = compute.packed_file(settings, f"qwen3_tts talker {precision}", checkpoint.identity(MODEL), sizes, worth)
    keep, without = (TEXT_EMBEDDING,), LAYERS if native else ()
    checkpoint.load(talker, MODEL, "talker.", dtype, device, keep, without)
    talker.eval().requires_grad_(False)

    def load(module: nn.Module, name: str) -> None:
        checkpoint.load(module, MODEL, f"talker.{name}.", None, device)  # packing converts it

    if native:
        use_native_code(talker, precision, load, packed)
    return talker, checkpoint.config


def load_talker(given: Settings) -> Qwen3TTSTalker:
    """The talker stage as the settings ask for it."""
    settings = TalkerSettings.of(given)
    talker, config = load_network(given)
    frame_rate = config.codec.output_sample_rate / config.codec.decode_upsample_rate
    generator = load_generator(settings, talker, frame_rate, 128 << 20)
    return Qwen3TTSTalker(generator, config, Tokenizer(settings.checkpoint_dir))
