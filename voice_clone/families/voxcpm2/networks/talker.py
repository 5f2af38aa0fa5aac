"""The talker's networks in torch. Names are official."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.array_kinds import in_dtype_of, in_kind_of
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.kv_cache import KVCache
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.families.voxcpm2.audio_vae_config import LATENT_SIZE, LATENTS
from voice_clone.families.voxcpm2.config import VoxCPM2Config
from voice_clone.families.voxcpm2.networks.language_models import LanguageModels, layouts, of_all_layers
from voice_clone.families.voxcpm2.networks.patch_head import Sampler
from voice_clone.families.voxcpm2.networks.times import TimeWeights, time_table
from voice_clone.families.voxcpm2.talker import Talker
from voice_clone.layers.fused import empty_table


class LocalEncoder(nn.Module):
    """Makes a row of a frame: of its latents and a special row before them, that row's result."""

    def __init__(self, layout: StackConfig) -> None:
        super().__init__()
        self.special_token = nn.Parameter(torch.zeros(1, 1, 1, layout.hidden_size))
        self.in_proj = nn.Linear(LATENT_SIZE, layout.hidden_size)
        self.encoder = DecoderStack(layout)

    def forward(self, latents: Tensor) -> Tensor:
        """Frames [N, W] -> [N, size]."""
        rows = self.in_proj(latents.view(-1, LATENTS, LATENT_SIZE))
        first = self.special_token[0].expand(len(rows), -1, -1)
        return self.encoder.together(torch.cat([first, rows], dim=1))[:, 0]


class Quantizer(nn.Module):
    """Rounds a few projections of a hidden state: [..., C] -> [..., C]."""

    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__()
        size, inner = config.lm_config.hidden_size, config.scalar_quantization_latent_dim
        self.scale = config.scalar_quantization_scale
        self.in_proj = nn.Linear(size, inner)
        self.out_proj = nn.Linear(inner, size)

    def forward(self, hidden: Tensor) -> Tensor:
        levels = torch.round(torch.tanh(self.in_proj(hidden)) * self.scale) / self.scale
        out: Tensor = self.out_proj(levels)
        return out


class SharedCache(KVCache):
    """The layers of both models in one memory.

    Attributes:
        base, residual: each model's part.
    """

    def __init__(self, base: StackConfig, residual: StackConfig, slots: int, max_length: int, like: Tensor) -> None:
        super().__init__(of_all_layers(base, residual), slots, max_length, like)
        self.base = self.part(slice(0, base.num_hidden_layers), base, like)
        self.residual = self.part(slice(base.num_hidden_layers, None), residual, like)


class BaseModel(DecoderStack):
    """The base model and its table of tokens."""

    def __init__(self, config: StackConfig, tokens: int) -> None:
        super().__init__(config)
        self.embed_tokens = empty_table(tokens, config.hidden_size)


class ModelNetworks(nn.Module):
    """The language models, and what is before and between them."""

    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__()
        found, lm = layouts(config), config.lm_config
        self.base_lm = BaseModel(found["models.base_lm"], lm.vocab_size)
        self.residual_lm = DecoderStack(found["models.residual_lm"])
        self.feat_encoder = LocalEncoder(found["models.feat_encoder.encoder"])
        self.fsq_layer = Quantizer(config)
        self.enc_to_lm_proj = nn.Linear(config.encoder_config.hidden_dim, lm.hidden_size)
        self.fusion_concat_proj = nn.Linear(2 * lm.hidden_size, lm.hidden_size)

    def models(self) -> LanguageModels:
        """The stack of these networks."""
        return LanguageModels(
            self.base_lm,
            self.residual_lm,
            self._encode,
            self.fsq_layer,
            self.fusion_concat_proj,
            self._new_cache,
        )

    def _encode(self, frames: Tensor) -> Tensor:
        encoded: Tensor = self.enc_to_lm_proj(self.feat_encoder(frames))
        return encoded

    def _new_cache(self, slots: int, max_length: int) -> SharedCache:
        return SharedCache(self.base_lm.config, self.residual_lm.config, slots, max_length, self.base_lm.like)


class TimeMLP(nn.Module):
    """The weights of `TimeWeights`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(size, size)
        self.linear_2 = nn.Linear(size, size)

    @property
    def arrays(self) -> TimeWeights:
        """The weights in fp32 on the host."""
        return TimeWeights(*(each.detach().to("cpu", torch.float32).numpy() for each in self.parameters()))


class LocalDiT(nn.Module):
    """The transformer that reads the velocity."""

    def __init__(self, layout: StackConfig) -> None:
        super().__init__()
        size = layout.hidden_size
        self.in_proj = nn.Linear(LATENT_SIZE, size)
        self.cond_proj = nn.Linear(LATENT_SIZE, size)
        self.out_proj = nn.Linear(size, LATENT_SIZE)
        self.time_mlp = TimeMLP(size)
        self.delta_time_mlp = TimeMLP(size)
        self.decoder = DecoderStack(layout)


class SamplerNetworks(nn.Module):
    """The networks of the head.

    Attributes:
        time_table: as of `times`, once it was needed.
    """

    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__()
        size, inner = config.lm_config.hidden_size, config.dit_config.hidden_dim
        layout = layouts(config)["sampler.feat_decoder.estimator.decoder"]
        self.feat_decoder = nn.ModuleDict({"estimator": LocalDiT(layout)})
        self.lm_to_dit_proj = nn.Linear(size, inner)
        self.res_to_dit_proj = nn.Linear(size, inner)
        self.stop_proj = nn.Linear(size, size)
        self.stop_head = nn.Linear(size, 2, bias=False)
        self.time_table: tuple[Tensor, Tensor] | None = None

    def sampler(self) -> Sampler:
        """The sampler of these networks."""
        estimator: Any = self.feat_decoder["estimator"]
        return Sampler(
            self.lm_to_dit_proj,
            self.res_to_dit_proj,
            estimator.cond_proj,
            estimator.in_proj,
            estimator.decoder.together,
            estimator.out_proj,
            self.times,
            lambda hidden: self.stop_head(F.silu(self.stop_proj(hidden))),
        )

    @torch.inference_mode()
    def times(self) -> tuple[Tensor, Tensor]:
        """As of `times.time_table`, in the dtype of the weights; fp32 lengths."""
        if self.time_table is None:
            like, estimator = self.stop_head.weight, self.feat_decoder["estimator"]
            assert isinstance(estimator, LocalDiT)
            made = time_table(estimator.time_mlp.arrays, estimator.delta_time_mlp.arrays, like.dtype == torch.bfloat16)
            rows, lengths = (in_kind_of(like, each) for each in made)
            self.time_table = in_dtype_of(like, rows), lengths
        return self.time_table


class TalkerNetwork(nn.Module):
    """All networks of the talker."""

    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__()
        self.config = config
        self.models = ModelNetworks(config)
        self.sampler = SamplerNetworks(config)

    def talker(self) -> Talker:
        """The talker of these networks."""
        table = self.models.base_lm.embed_tokens.weight
        return Talker(self.config, self.models.models(), table, self.sampler.sampler())
