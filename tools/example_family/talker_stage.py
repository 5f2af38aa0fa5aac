"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tools.example_family.config import ChirpConfig
from tools.example_family.family import CARD
from tools.example_family.prompt import TIMBRE, Prompt
from tools.example_family.prompt_stage import read
from tools.example_family.talker import ChirpTalker
from voice_clone.autoregressive.sampling import OneSampling
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.requests import check_plan
from voice_clone.stages.talker import CardTalker


class ChirpTalkerStage(CardTalker[ChirpConfig, None, Prompt]):
    """The talker of a checkpoint."""

    card, prompt, talker = CARD, Prompt, ChirpTalker
    places = (TalkerPart(place="", prefix="talker.", layers=()),)
    read = staticmethod(read)

    @classmethod
    def frame_rate(cls, config: ChirpConfig) -> float:
        return 1 / config.frame_seconds

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[Prompt]]:
        """A stream of the prompt that `ChirpPrompt` has made."""
        check_plan(CARD, tensors, knobs, options)
        read = {name: tensors[name] for name in CARD.prompt}
        prompt = Prompt(**read, **{"vibrato": 0.0, "breath": False, **options})  # type: ignore[arg-type]
        prompt.check(self.config)
        defaults = self.config.sampling
        given = {name: knobs.get(name, getattr(defaults, name)) for name in CARD.knobs}
        max_frames = knobs.get("max_frames", defaults.max_frames)
        sampling = OneSampling(seed=knobs["seed"], **given)
        request = TalkerRequest(prompt, sampling, max_frames, budgeted="max_frames" not in knobs)
        context = np.zeros((0, len(self.config.codebook_sizes)), np.int32)  # no reference is decoded
        return StreamPlan(request, context, voice={TIMBRE: prompt.timbre})

    def example(self, reference_frames: int, max_frames: int) -> TalkerRequest[Prompt]:
        """A request of zeros, for the warm-up."""
        rows = max(1, min(reference_frames, self.source.max_length - max_frames - 32))
        timbre = np.zeros((rows, self.config.timbre_size), np.float16)
        prompt = Prompt(timbre, np.zeros(8, np.uint8), np.zeros(8, np.uint8), breath=True)
        # top_p below 1 takes the longest way through the sampler.
        return TalkerRequest(prompt, OneSampling(seed=0, top_p=0.9), max_frames)


load_network, load_talker = ChirpTalkerStage.load_network, ChirpTalkerStage.load
