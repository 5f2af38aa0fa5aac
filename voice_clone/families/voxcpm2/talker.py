"""The prompt to frames of latents: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import NDArray
from torch import Tensor

from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.autoregressive.stack.to_native import Load, layer_loader, native_stack
from voice_clone.autoregressive.talker import Prefix, TalkerRequest
from voice_clone.autoregressive.talker_module import TalkerModule
from voice_clone.errors import InvalidArgument
from voice_clone.families.voxcpm2.audio_vae_config import CONTEXT_FRAMES, FRAME_SECONDS, REFERENCE_LATENTS
from voice_clone.families.voxcpm2.config import (
    LEAST_FRAMES,
    REFERENCE_BEGIN,
    REFERENCE_END,
    TEXT_END,
    VoxCPM2Config,
    check_names,
)
from voice_clone.families.voxcpm2.family import CARD
from voice_clone.families.voxcpm2.networks.language_models import LanguageModels
from voice_clone.families.voxcpm2.networks.patch_head import PatchHead, Sampler, SamplingParameters
from voice_clone.families.voxcpm2.options import check_together
from voice_clone.families.voxcpm2.prompt import TARGET_TOKENS, Prompt, Tokenizer, read
from voice_clone.layers.graphs import to_device
from voice_clone.lru_cache import digest
from voice_clone.native.matrix.linear_module import use_native_linears
from voice_clone.native.matrix.weights import head_precision
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.settings import Precision, TalkerSettings
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.loading import TalkerPart, empty
from voice_clone.stages.protocols import Arrays
from voice_clone.stages.talker import CardTalker


class Talker(TalkerModule[Prompt]):
    """All networks of the talker.

    Attributes:
        models: the language models; the stack.
        sampler: the networks of the head.
        head: a `PatchHead`.
    """

    layers, min_frames = "models", LEAST_FRAMES

    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__(config)
        self.models = LanguageModels(config)
        self.sampler = Sampler(config)
        self.head = PatchHead(self.sampler, self.models)

    def prompt_length(self, prompt: Prompt) -> int:
        return prompt.length

    def prefix(self, prompt: Prompt) -> Prefix:
        """The reference, and its marks."""
        length = prompt.reference_length
        return Prefix(digest(prompt.reference_latents) if length else b"", length)

    def prompt_rows(self, prompt: Prompt) -> list[Tensor]:
        parts = [self._token_rows(np.append(prompt.text_ids, np.int32(TEXT_END)))]
        if len(prompt.reference_latents):
            marks = self._token_rows(np.array([REFERENCE_BEGIN, REFERENCE_END], np.int32))
            parts = [marks[:1], self._frame_rows(prompt.reference_latents), marks[1:], *parts]
        if len(prompt.prompt_latents):
            parts.append(self._frame_rows(prompt.prompt_latents))
        return parts

    def embed_frames(self, payload: Tensor) -> Tensor:
        """Latents [N, W] -> [N, I]."""
        return self.models.frame_rows(payload)

    def _frame_rows(self, latents: npt.NDArray[np.float32]) -> Tensor:
        return self.models.frame_rows(to_device(torch.from_numpy(np.array(latents)), self.stack.like.device))

    def _token_rows(self, ids: npt.NDArray[np.int32]) -> Tensor:
        return self.models.token_rows(self.rows_of(self.models.base_lm.embed_tokens.weight, ids))


def use_native_code(
    talker: Talker, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
) -> Talker:
    """Replace the layers and projections of a talker by native code: a `UseNativeCode`.

    All but the language models keep at least 8 bits: they repeat their errors in every step of every frame.
    """
    models, sampler = talker.models, talker.sampler
    estimator, encoder, least = sampler.estimator, models.feat_encoder, head_precision(precision)
    # The official code runs a checkpoint in bf16, and so were these numbers in training.
    sampler.times(torch.float32 if precision == "fp32" else torch.bfloat16)
    del estimator.time_mlp, estimator.delta_time_mlp

    def native(name: str, kept: Precision) -> NativeStack:
        stack = talker.get_submodule(name)
        return native_stack(stack, kept, layer_loader(load, name), packed.part(name))  # type: ignore[arg-type]

    models.native = native("models.base_lm", precision), native("models.residual_lm", precision)
    encoder.native_encoder = native("models.feat_encoder.encoder", least)
    estimator.native_decoder = native("sampler.feat_decoder.estimator.decoder", least)
    for name, projections in (
        ("models", ("enc_to_lm_proj", "fusion_concat_proj")),
        ("models.feat_encoder", ("in_proj",)),
        ("models.fsq_layer", ("in_proj", "out_proj")),
        ("sampler", ("lm_to_dit_proj", "res_to_dit_proj", "stop_proj")),
        ("sampler.feat_decoder.estimator", ("in_proj", "cond_proj", "out_proj")),
    ):
        use_native_linears(talker.get_submodule(name), projections, least, packed.part(f"{name} projections"))
    packed.keep()
    return talker


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
