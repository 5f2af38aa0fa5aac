"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from tools.example_family.config import WEIGHTS, ChirpConfig, load_config
from tools.example_family.family import CARD
from tools.example_family.prompt import TIMBRE, Prompt
from tools.example_family.talker import ChirpTalker
from voice_clone import compute
from voice_clone.autoregressive.generator import Generator, load_generator
from voice_clone.autoregressive.sampling import OneSampling
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.errors import Unsupported
from voice_clone.lru_cache import Origin
from voice_clone.settings import CPU_PRECISIONS, Settings, TalkerSettings
from voice_clone.speakers.store import KnownVoices
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.requests import check_plan


class ChirpTalkerStage:
    """The talker of a checkpoint with the memory of its streams."""

    chunk_frames = CARD.chunk_frames

    def __init__(self, source: Generator[Prompt], config: ChirpConfig) -> None:
        self.source = source
        self.frame_seconds = config.frame_seconds
        self._config = config

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[Prompt]]:
        """A stream of the prompt that `ChirpPrompt` has made."""
        check_plan(CARD, tensors, knobs, options)
        read = {name: tensors[name] for name in CARD.prompt}
        prompt = Prompt(**read, **{"vibrato": 0.0, "breath": False, **options})  # type: ignore[arg-type]
        prompt.check(self._config)
        defaults = self._config.sampling
        given = {name: knobs.get(name, getattr(defaults, name)) for name in CARD.knobs}
        max_frames = knobs.get("max_frames", defaults.max_frames)
        sampling = OneSampling(seed=knobs["seed"], **given)
        request = TalkerRequest(prompt, sampling, max_frames, budgeted="max_frames" not in knobs)
        context = np.zeros((0, len(self._config.codebook_sizes)), np.int32)  # no reference is decoded
        return StreamPlan(request, context, voice={TIMBRE: prompt.timbre})

    def example(self, reference_frames: int, max_frames: int) -> TalkerRequest[Prompt]:
        """A request of zeros, for the warm-up."""
        rows = max(1, min(reference_frames, self.source.max_length - max_frames - 32))
        timbre = np.zeros((rows, self._config.timbre_size), np.float16)
        prompt = Prompt(timbre, np.zeros(8, np.uint8), np.zeros(8, np.uint8), breath=True)
        # top_p below 1 takes the longest way through the sampler.
        return TalkerRequest(prompt, OneSampling(seed=0, top_p=0.9), max_frames)

    def known_prompts(self, voices: KnownVoices) -> Iterator[tuple[Origin, Prompt]]:
        """None: the torch stack caches no prefixes."""
        return iter(())


def load_network(given: Settings) -> ChirpTalker:
    """The talker on its device."""
    settings = TalkerSettings.of(given)
    if compute.precision(settings) in CPU_PRECISIONS:
        raise Unsupported("this model computes in fp32 or bf16 alone")
    with torch.device("meta"):
        talker = ChirpTalker(load_config(settings.checkpoint_dir))
    files, device = CheckpointFiles(settings.checkpoint_dir), torch.device(compute.device(settings))
    files.load(talker, WEIGHTS, "talker.", compute.dtype(settings), device)
    return talker.eval().requires_grad_(False)


def load_talker(given: Settings) -> ChirpTalkerStage:
    """The talker stage as the settings ask for it."""
    talker = load_network(given)
    generator = load_generator(TalkerSettings.of(given), talker, 1 / talker.config.frame_seconds, CARD.prefix_bytes)
    return ChirpTalkerStage(generator, talker.config)
