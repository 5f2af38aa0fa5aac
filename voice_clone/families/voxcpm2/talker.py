"""The prompt to frames of latents: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from voice_clone.array_kinds import Numbers
from voice_clone.autoregressive.native_parts import NativeParts
from voice_clone.autoregressive.stack.native_stack import NativeCache, layers_by_name
from voice_clone.autoregressive.talker import Prefix, TalkerRequest
from voice_clone.autoregressive.whole_prompt import WholePrompts
from voice_clone.errors import InvalidArgument
from voice_clone.families.voxcpm2.audio_vae_config import (
    CONTEXT_FRAMES,
    FRAME_SECONDS,
    LATENT_SIZE,
    LATENTS,
    REFERENCE_LATENTS,
)
from voice_clone.families.voxcpm2.config import (
    LEAST_FRAMES,
    REFERENCE_BEGIN,
    REFERENCE_END,
    TEXT_END,
    VoxCPM2Config,
    check_names,
)
from voice_clone.families.voxcpm2.family import CARD
from voice_clone.families.voxcpm2.networks.language_models import LanguageModels, layouts, of_all_layers
from voice_clone.families.voxcpm2.networks.patch_head import PatchHead, Sampler, SamplingParameters
from voice_clone.families.voxcpm2.networks.times import TimeWeights, time_table
from voice_clone.families.voxcpm2.options import check_together
from voice_clone.families.voxcpm2.prompt import TARGET_TOKENS, Prompt, Tokenizer, read
from voice_clone.lru_cache import digest
from voice_clone.native.arrays import Array
from voice_clone.native.matrix.linear import PackedLinear
from voice_clone.native.matrix.weights import as_float32, head_precision
from voice_clone.native.silu import silu
from voice_clone.settings import Precision, TalkerSettings
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.loading import TalkerPart, name_in_file
from voice_clone.stages.protocols import Arrays
from voice_clone.stages.talker import CardTalker

if TYPE_CHECKING:  # native code does without torch
    from voice_clone.families.voxcpm2.networks.talker import TalkerNetwork

TABLE, SPECIAL = "models.base_lm.embed_tokens.weight", "models.feat_encoder.special_token"
ENCODER, ESTIMATOR, STOP_HEAD = "models.feat_encoder.encoder", "sampler.feat_decoder.estimator", "sampler.stop_head"
TIMES = tuple(f"{ESTIMATOR}.{mlp}.linear_{n}" for mlp in ("time_mlp", "delta_time_mlp") for n in (1, 2))
LINEARS = (
    *(f"models.{part}" for part in ("enc_to_lm_proj", "fusion_concat_proj", "feat_encoder.in_proj")),
    *(f"models.fsq_layer.{part}_proj" for part in ("in", "out")),
    *(f"sampler.{part}_proj" for part in ("lm_to_dit", "res_to_dit", "stop")),
    *(f"{ESTIMATOR}.{part}_proj" for part in ("in", "cond", "out")),
)
"""Linear layers with a bias, but for `TIMES`."""


class Talker(WholePrompts[Prompt]):
    """All networks of the talker, of tensors or of arrays.

    Args:
        config: of the checkpoint.
        models: the language models.
        table: the embeddings of tokens [tokens, C]; of any dtype, on any device.
        sampler: the networks of the head.

    Attributes:
        stack: the language models.
        head: a `PatchHead`.
    """

    min_frames = LEAST_FRAMES

    def __init__(self, config: VoxCPM2Config, models: LanguageModels, table: Numbers, sampler: Sampler) -> None:
        self.config, self._table = config, table
        self.stack: LanguageModels = models
        self.head = PatchHead(sampler, models)

    def prompt_length(self, prompt: Prompt) -> int:
        return prompt.length

    def prefix(self, prompt: Prompt) -> Prefix:
        """The reference, and its marks."""
        length = prompt.reference_length
        return Prefix(digest(prompt.reference_latents) if length else b"", length)

    def prompt_rows(self, prompt: Prompt) -> list[Numbers]:
        parts = [self._token_rows(np.append(prompt.text_ids, np.int32(TEXT_END)))]
        if len(prompt.reference_latents):
            marks = self._token_rows(np.array([REFERENCE_BEGIN, REFERENCE_END], np.int32))
            parts = [marks[:1], self._frame_rows(prompt.reference_latents), marks[1:], *parts]
        if len(prompt.prompt_latents):
            parts.append(self._frame_rows(prompt.prompt_latents))
        return parts

    def embed_frames(self, payload: Numbers) -> Numbers:
        """Latents [N, W] -> [N, I]."""
        return self.stack.frame_rows(payload)

    def _frame_rows(self, latents: npt.NDArray[np.float32]) -> Numbers:
        return self.stack.frame_rows(self.numbers(np.array(latents)))

    def _token_rows(self, ids: npt.NDArray[np.int32]) -> Numbers:
        return self.stack.token_rows(self.rows_of(self._table, ids))


class SharedCache(NativeCache):
    """The layers of both models in one memory of arrays.

    Attributes:
        base, residual: each model's part.
    """

    def __init__(self, config: VoxCPM2Config, slots: int, max_length: int) -> None:
        base, residual, *_ = layouts(config).values()
        super().__init__(of_all_layers(base, residual), slots, max_length)
        self.base = self.part(slice(0, base.num_hidden_layers))
        self.residual = self.part(slice(base.num_hidden_layers, None))


def native_talker(config: VoxCPM2Config, tokenizer: Tokenizer, parts: NativeParts) -> Talker:
    """The talker as native code.

    All but the language models keep at least 8 bits: they repeat their errors in every step of every frame.
    """
    found, lm, inner = layouts(config), config.lm_config, config.scalar_quantization_latent_dim
    size, encoded, drawn = lm.hidden_size, config.encoder_config.hidden_dim, config.dit_config.hidden_dim
    exact = parts.precision == "fp32"
    least = parts._replace(precision=head_precision(parts.precision))
    base, residual = (parts.stack(name, found[name]) for name in ("models.base_lm", "models.residual_lm"))
    encoder, decoder = (least.stack(name, found[name]) for name in (ENCODER, f"{ESTIMATOR}.decoder"))

    def linear(name: str, inputs: int, outputs: int, bias: bool = True, kept: Precision | None = None) -> PackedLinear:
        return parts.linear({name: outputs}, inputs, bias, kept)

    def make_times() -> tuple[Array, Array]:
        weights = [
            as_float32(parts.read(f"{name}.{part}", shape))
            for name in TIMES
            for part, shape in (("weight", (drawn, drawn)), ("bias", (drawn,)))
        ]
        # The official code runs a checkpoint in bf16, and so were these numbers in training.
        return time_table(TimeWeights(*weights[:4]), TimeWeights(*weights[4:]), not exact)

    rows, lengths = parts.packed.part("times")(make_times)
    first = as_float32(parts.read(SPECIAL, (1, 1, 1, encoded)))[0]
    to_rows = linear("models.feat_encoder.in_proj", LATENT_SIZE, encoded)
    to_model, join = linear("models.enc_to_lm_proj", encoded, size), linear("models.fusion_concat_proj", 2 * size, size)
    narrow, wide = linear("models.fsq_layer.in_proj", size, inner), linear("models.fsq_layer.out_proj", inner, size)
    scale = np.float32(config.scalar_quantization_scale)
    stop_proj, stop_head = linear("sampler.stop_proj", size, size), linear(STOP_HEAD, size, 2, False, "fp32")

    def encode(frames: Array) -> Array:
        latents = to_rows(frames.reshape(-1, LATENTS, LATENT_SIZE))
        before = np.broadcast_to(first, (len(latents), *first.shape[1:]))
        return to_model(encoder.together(np.concatenate([before, latents], axis=1))[:, 0])

    def quantize(hidden: Array) -> Array:
        levels = np.tanh(narrow(hidden).astype(np.float64)).astype(np.float32)  # the same on any processor
        return wide(np.round(levels * scale) / scale)

    def new_cache(slots: int, max_length: int) -> SharedCache:
        cache = SharedCache(config, slots, max_length)
        for stack, part in ((base, cache.base), (residual, cache.residual)):
            stack.memory(part)  # makes rotary tables now, not with the first stream
        return cache

    models = LanguageModels(base, residual, encode, quantize, join, new_cache)
    sampler = Sampler(
        linear("sampler.lm_to_dit_proj", size, drawn),
        linear("sampler.res_to_dit_proj", size, drawn),
        linear(f"{ESTIMATOR}.cond_proj", LATENT_SIZE, drawn),
        linear(f"{ESTIMATOR}.in_proj", LATENT_SIZE, drawn),
        decoder.together,
        linear(f"{ESTIMATOR}.out_proj", drawn, LATENT_SIZE),
        lambda: (rows, lengths),
        lambda hidden: stop_head(silu(stop_proj(hidden))),
    )
    return Talker(config, models, parts.read(TABLE, (lm.vocab_size, size)), sampler)


def weight_names(config: VoxCPM2Config) -> set[str]:
    """Those of all weights of the talker in its file."""
    names = {TABLE, SPECIAL, f"{STOP_HEAD}.weight"}
    names |= {f"{name}.{part}" for name in (*LINEARS, *TIMES) for part in ("weight", "bias")}
    for stack, layout in layouts(config).items():
        list(layers_by_name(lambda name, shape: names.add(name), f"{stack}.", layout))
    return {name_in_file(PARTS, name) for name in names}


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
    card, prompt, sampling = CARD, Prompt, SamplingParameters
    places, rate, known_modes = PARTS, 1 / FRAME_SECONDS, tuple(CARD.modes)
    read, native_talker = staticmethod(read), staticmethod(native_talker)

    @classmethod
    def fill_network(cls, settings: TalkerSettings, config: VoxCPM2Config, tokenizer: Tokenizer) -> Talker:
        check_names(settings.checkpoint_dir, weight_names(config))
        filled: Talker = super().fill_network(settings, config, tokenizer)
        return filled

    @classmethod
    def network(cls, config: VoxCPM2Config, tokenizer: Tokenizer) -> TalkerNetwork:
        from voice_clone.families.voxcpm2.networks.talker import TalkerNetwork

        return TalkerNetwork(config)

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
load_torch_network = VoxCPM2Talker.load_torch_network
