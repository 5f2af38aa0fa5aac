"""The prompt to frames of latents: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.errors import InvalidArgument
from voice_clone.families.voxcpm2.audio_vae_config import CONTEXT_FRAMES, FRAME_SECONDS, REFERENCE_LATENTS
from voice_clone.families.voxcpm2.config import VoxCPM2Config, check_names
from voice_clone.families.voxcpm2.family import CARD
from voice_clone.families.voxcpm2.networks.patch_head import SamplingParameters
from voice_clone.families.voxcpm2.networks.talker import Talker, use_native_code
from voice_clone.families.voxcpm2.options import check_together
from voice_clone.families.voxcpm2.prompt import Prompt
from voice_clone.families.voxcpm2.prompt_stage import TARGET_TOKENS
from voice_clone.families.voxcpm2.text import Tokenizer, read
from voice_clone.settings import TalkerSettings
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.loading import TalkerPart, empty
from voice_clone.stages.protocols import Arrays
from voice_clone.stages.talker import CardTalker

PARTS = [
    TalkerPart(
        place="models.",
        prefix="",
        layers=("base_lm.layers.", "residual_lm.layers.", "feat_encoder.encoder.layers."),
        in_file=("base_lm.embed_tokens.weight",),
    ),
    TalkerPart(place="sampler.", prefix="", layers=("feat_decoder.estimator.decoder.layers.",)),
]


class VoxCPM2Talker(CardTalker[VoxCPM2Config, Tokenizer, Prompt]):
    """The talker of a checkpoint."""

    card, prompt, sampling, talker = CARD, Prompt, SamplingParameters, Talker
    places, rate, known_modes = PARTS, 1 / FRAME_SECONDS, tuple(CARD.modes)
    read, native_code = staticmethod(read), staticmethod(use_native_code)

    @classmethod
    def fill_network(cls, settings: TalkerSettings, config: VoxCPM2Config, tokenizer: Tokenizer) -> Talker:
        talker = empty(partial(Talker, config))
        check_names(settings.checkpoint_dir, {*talker.models.state_dict(), *talker.sampler.state_dict()})
        filled: Talker = super().fill_network(settings, config, tokenizer)
        return filled

    def request(self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]) -> TalkerRequest[Prompt]:
        check_together(options)
        return super().request(tensors, knobs, options)

    def tokens(self, prompt: Prompt, tensors: Arrays) -> int:
        target = tensors[TARGET_TOKENS]
        if target.dtype != np.int32 or target.shape != (1,) or int(target[0]) < 1:
            raise InvalidArgument(f"{TARGET_TOKENS} must be INT32 [1], at least 1")
        return int(target[0])

    def context(self, prompt: Prompt) -> NDArray[np.float32]:
        return prompt.prompt_latents[-CONTEXT_FRAMES:]

    def prompt_of(self, transcript: str, artifacts: Artifacts) -> Prompt:
        reference = artifacts[REFERENCE_LATENTS]
        return Prompt(self.tokenizer.text_ids("a"), reference, reference[:0])


load_network, load_talker = VoxCPM2Talker.load_network, VoxCPM2Talker.load
