"""The prompt to codec frames: a `voice_clone.stages.TalkerStage`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from voice_clone import compute
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.loading import load_generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.families.fish_speech.checkpoint import FAST, MODEL, SLOW, Checkpoint
from voice_clone.families.fish_speech.config import CHUNK_FRAMES, FRAME_RATE, FishSpeechConfig
from voice_clone.families.fish_speech.known_voices import known_prompts
from voice_clone.families.fish_speech.networks.native import use_native_code
from voice_clone.families.fish_speech.networks.talker import Talker
from voice_clone.families.fish_speech.prompt import Prompt
from voice_clone.families.fish_speech.sampling import SamplingParameters
from voice_clone.families.fish_speech.text import Tokenizer
from voice_clone.lru_cache import Origin
from voice_clone.settings import Settings, TalkerSettings
from voice_clone.speakers.store.protocol import KnownVoices
from voice_clone.speech import check_options
from voice_clone.stages import Arrays, StreamPlan

TENSORS = ("reference_ids", "reference_codes", "text_ids")
PREFIXES = {"slow": SLOW, "fast": FAST}
# A frame reads a few rows of these tables: on a CPU they stay in the file.
TABLES = {"slow": ("embeddings.weight",), "fast": ("embeddings.weight", "codebook_embeddings.weight")}
MAX_FRAMES = 3528  # 164 s
MIN_FRAME_BUDGET = 331  # frames (15.4 s) that even the shortest text may take
FRAMES_PER_TOKEN = 21  # a text of n tokens rarely takes more than 21 n frames


class FishSpeechTalker:
    """The talker of a checkpoint with the memory of its streams."""

    chunk_frames = CHUNK_FRAMES
    frame_seconds = 1 / FRAME_RATE

    def __init__(self, source: Generator[Prompt], config: FishSpeechConfig, tokenizer: Tokenizer) -> None:
        self.source = source
        self._config = config
        self._tokenizer = tokenizer

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[Prompt]]:
        """A stream of the prompt that `FishSpeechPrompt` has made."""
        check_options(options, {})
        if "repetition_penalty" in knobs:
            raise Unsupported("this model has no repetition_penalty; leave it out")
        if knobs.get("non_streaming_mode") is False:
            raise Unsupported("this model reads the whole text first: non_streaming_mode cannot be false")
        for name in TENSORS:
            if name not in tensors:
                raise InvalidArgument(f"prompt lacks {name}; the prompt stage makes it")
        prompt = Prompt(**{name: tensors[name] for name in TENSORS})
        fields = SamplingParameters.__dataclass_fields__
        sampling = replace(SamplingParameters(seed=0), **{name: knobs[name] for name in fields if name in knobs})
        wanted = knobs.get("max_frames")
        budget = self._frame_budget(prompt, wanted)
        request = TalkerRequest(prompt, sampling, budget, budgeted=budget != wanted)
        return StreamPlan(request, np.zeros((0, self._config.codebooks), np.uint16))

    def example(self, reference_frames: int, max_frames: int) -> TalkerRequest[Prompt]:
        """A request of zeros, for the warm-up."""
        frames = max(1, min(reference_frames, self.source.max_length - max_frames - 32))
        ids = np.zeros(8, np.int32)
        prompt = Prompt(ids, np.zeros((frames, self._config.codebooks), np.uint16), ids)
        return TalkerRequest(prompt, SamplingParameters(seed=0), max_frames)

    def known_prompts(self, voices: KnownVoices) -> Iterator[tuple[Origin, Prompt]]:
        """Of each voice on disk with a transcript."""
        return known_prompts(voices, self._tokenizer)

    def _frame_budget(self, prompt: Prompt, max_frames: int | None) -> int:
        """Frames after which a stream ends: with the finish `length` if they are the caller's, else with `budget`.

        Raises:
            InvalidArgument: `max_frames` is < 1.
        """
        if max_frames is not None and max_frames < 1:
            raise InvalidArgument(f"max_frames is {max_frames}; it must be at least 1")
        tokens = len(prompt.text_ids) - self._tokenizer.around_text
        budget = min(max(MIN_FRAME_BUDGET, FRAMES_PER_TOKEN * tokens), max_frames or MAX_FRAMES)
        if max_frames is None:  # cut to what fits the slot; one that was asked for must fit
            length = len(prompt.reference_ids) + len(prompt.reference_codes) + len(prompt.text_ids)
            budget = max(1, min(budget, self.source.max_length - length))
        return budget


def load_network(given: Settings) -> tuple[Talker, FishSpeechConfig, Tokenizer]:
    """The talker, native on a CPU, the configuration and the tokenizer."""
    settings = TalkerSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    tokenizer = Tokenizer(settings.checkpoint_dir, checkpoint.config)
    dtype, device = compute.dtype(settings), torch.device(compute.device(settings))
    native = device.type == "cpu"
    with torch.device("meta"):
        talker = Talker(checkpoint.config, tokenizer.end_token)
    precision = compute.precision(settings)
    # An exact matrix is packed faster than a file of its size is written and read.
    worth = native and precision in ("int8", "int4")
    network = f"fish_speech talker {precision}"
    packed = compute.packed_file(settings, network, checkpoint.identity(MODEL), checkpoint.config, worth)
    for name, prefix in PREFIXES.items():
        # On a GPU the table of all tokens stays in the file: a prompt needs a few rows, a frame those of the codes.
        keep = TABLES[name] if native or name == "slow" else ()
        checkpoint.load(getattr(talker, name), MODEL, prefix, dtype, device, keep, ("layers.",) if native else ())
    talker.eval().requires_grad_(False)

    def load(module: nn.Module, name: str) -> None:
        network, _, layer = name.partition(".")
        checkpoint.load(module, MODEL, f"{PREFIXES[network]}{layer}.", None, device)  # packing converts it

    if native:
        use_native_code(talker, precision, load, packed)
    return talker, checkpoint.config, tokenizer


def load_talker(given: Settings) -> FishSpeechTalker:
    """The talker stage as the settings ask for it."""
    settings = TalkerSettings.of(given)
    talker, config, tokenizer = load_network(given)
    generator = load_generator(settings, talker, FRAME_RATE, 512 << 20)
    return FishSpeechTalker(generator, config, tokenizer)
