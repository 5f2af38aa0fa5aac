"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from voice_clone import compute
from voice_clone.autoregressive.generator import Generator, load_generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.families.voxtral.checkpoint import BACKBONE, FLOW, TABLES, Checkpoint
from voice_clone.families.voxtral.config import CHUNK_FRAMES, MODEL, VoxtralConfig
from voice_clone.families.voxtral.networks.native import use_native_code
from voice_clone.families.voxtral.networks.talker import Talker
from voice_clone.families.voxtral.prompt import CODES, NO_PRESET, Prompt
from voice_clone.families.voxtral.prompt_stage import OPTIONS
from voice_clone.families.voxtral.sampling import GUIDANCE, SamplingParameters
from voice_clone.families.voxtral.text import Tokenizer
from voice_clone.lru_cache import Origin
from voice_clone.settings import Settings
from voice_clone.speakers.record import IN_CONTEXT, ArtifactId
from voice_clone.speakers.store import KnownVoices
from voice_clone.speech import check_options
from voice_clone.stages.protocols import Arrays, StreamPlan

TENSORS = ("before_voice", "text_ids", "preset", CODES)
ARTIFACT = ArtifactId("voxtral", IN_CONTEXT)
PREFIXES = {"backbone": BACKBONE, "tables": TABLES, "flow": FLOW}
# A frame reads a few rows of these tables: on a CPU they stay in the file, and that of all tokens on a GPU, too.
TOKENS, IDS = "tok_embeddings.weight", "audio_codebook_embeddings.embeddings.weight"
MAX_FRAMES = 2048  # 164 s, as upstream serves the model
MIN_FRAME_BUDGET = 192  # frames (15.4 s) that even the shortest text may take
FRAMES_PER_TOKEN = 12  # a text of n tokens rarely takes more than 12 n frames, about a second a token
REFUSED = ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty")


class VoxtralTalker:
    """The talker of a checkpoint with the memory of its streams."""

    chunk_frames = CHUNK_FRAMES

    def __init__(self, source: Generator[Prompt], config: VoxtralConfig, tokenizer: Tokenizer) -> None:
        self.source = source
        self.frame_seconds = 1 / config.frame_rate
        self._config = config
        self._tokenizer = tokenizer

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[Prompt]]:
        """A stream of the prompt that `VoxtralPrompt` has made."""
        check_options(options, OPTIONS)
        for name in REFUSED:
            if name in knobs:
                raise Unsupported(
                    f"this model has no {name}: it takes the likeliest semantic code, and acoustic codes from noise; "
                    "leave it out, and give another seed for another speech"
                )
        if knobs.get("non_streaming_mode") is False:
            raise Unsupported("this model reads the whole text first: non_streaming_mode cannot be false")
        for name in TENSORS:
            if name not in tensors:
                raise InvalidArgument(f"prompt lacks {name}; the prompt stage makes it")
        prompt = Prompt(**{name: tensors[name] for name in TENSORS})
        sampling = SamplingParameters(seed=knobs["seed"], guidance=float(options.get("guidance", GUIDANCE)))
        wanted = knobs.get("max_frames")
        self.source.talker.check(prompt)  # the budget needs its length
        budget = self._frame_budget(prompt, wanted)
        request = TalkerRequest(prompt, sampling, budget, budgeted=budget != wanted)
        return StreamPlan(request, np.zeros((0, self._config.codebooks), np.uint16))

    def example(self, reference_frames: int, max_frames: int) -> TalkerRequest[Prompt]:
        """A request of zeros, for the warm-up."""
        frames = max(1, min(reference_frames, self.source.max_length - max_frames - 32))
        codes = np.zeros((frames, self._config.codebooks), np.uint16)
        prompt = Prompt(self._tokenizer.before_voice, np.zeros(8, np.int32), np.array([NO_PRESET], np.int32), codes)
        return TalkerRequest(prompt, SamplingParameters(seed=0), max_frames)

    def known_prompts(self, voices: KnownVoices) -> Iterator[tuple[Origin, Prompt]]:
        """A prompt with some text of each registered voice, the latest first."""
        text_ids = self._tokenizer.text_ids("a")
        for record, artifacts in voices.latest(ARTIFACT):
            with contextlib.suppress(InvalidArgument, KeyError):  # they belong to another checkpoint or version
                preset = np.array([NO_PRESET], np.int32)
                yield record.origin, Prompt(self._tokenizer.before_voice, text_ids, preset, artifacts[CODES])

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
            budget = max(1, min(budget, self.source.max_length - self.source.talker.prompt_length(prompt)))
        return budget


def load_network(settings: Settings) -> tuple[Talker, VoxtralConfig]:
    """The talker, native on a CPU, with its voices, and the configuration."""
    checkpoint = Checkpoint(settings.checkpoint_dir)
    dtype, device = compute.dtype(settings), torch.device(compute.device(settings))
    native = device.type == "cpu"
    with torch.device("meta"):
        talker = Talker(checkpoint.config)
    precision = compute.precision(settings)
    # An exact matrix is packed faster than a file of its size is written and read.
    worth = native and precision in ("int8", "int4")
    network = f"voxtral talker {precision}"
    packed = compute.packed_file(settings, network, checkpoint.identity(MODEL), checkpoint.config, worth)
    projections = tuple(
        f"layers.{n}.{part}." for n in range(checkpoint.config.flow.n_layers) for part in ("self_attn", "mlp")
    )
    later = {"backbone": ("layers.",), "flow": projections} if native else {}
    kept = {"tables": (TOKENS, IDS) if native else (TOKENS,)}
    for name, prefix in PREFIXES.items():
        module = getattr(talker, name)
        checkpoint.load(module, MODEL, prefix, dtype, device, kept.get(name, ()), later.get(name, ()))
    talker.eval().requires_grad_(False)

    def load(module: nn.Module, name: str) -> None:
        network, _, part = name.partition(".")
        checkpoint.load(module, MODEL, f"{PREFIXES[network]}{part}.", None, device)  # packing converts it

    if native:
        use_native_code(talker, precision, load, packed)
    talker.set_voices(checkpoint.voices())
    return talker, checkpoint.config


def load_talker(settings: Settings) -> VoxtralTalker:
    """The talker stage as the settings ask for it."""
    talker, config = load_network(settings)
    generator = load_generator(settings, talker, config.frame_rate, 512 << 20)
    return VoxtralTalker(generator, config, Tokenizer(settings.checkpoint_dir, config))
