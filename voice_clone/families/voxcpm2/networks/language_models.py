"""The two language models of VoxCPM2 and the encoder of frames before them, as one `Stack`.

The base model reads tokens and frames. Its results for frames are rounded (finite scalar quantization, Mentzer et al.
2024); the residual model reads them together with the frames. Source: voxcpm 2.0.3, `VoxCPM2Model._inference`.

The row of a position has all about it. The stack reads a token's embedding, a flag that says whether the position is a
frame, and the frame, which it encodes. It returns the results of both models, and the frame, from which the next one
continues.

Shapes: N positions, C hidden size, W numbers of a frame, I = C + 1 + W, H = 2 C + W.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.kv_cache import KVCache
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.autoregressive.stack.protocol import Stack, StackConfig
from voice_clone.families.voxcpm2.audio_vae_config import LATENT_SIZE, LATENTS, WIDTH
from voice_clone.families.voxcpm2.config import LocalConfig, VoxCPM2Config
from voice_clone.layers.fused import empty_table

Read = Callable[[Stack, KVCache, Tensor], Tensor]
"""One of the models reads positions: the model, its part of the cache, [N, C] -> [N, C]."""


def local_stack_config(config: VoxCPM2Config, local: LocalConfig) -> StackConfig:
    """Of a transformer over the few rows of one frame, which all see each other."""
    lm = config.lm_config
    return StackConfig(
        hidden_size=local.hidden_dim,
        intermediate_size=local.ffn_dim,
        num_hidden_layers=local.num_layers,
        num_attention_heads=local.num_heads,
        num_key_value_heads=lm.num_key_value_heads,
        head_dim=local.kv_channels,
        rms_norm_eps=lm.rms_norm_eps,
        rope_theta=lm.rope_theta,
        rope_factors=lm.rope_scaling.short_factor,
        qk_norm=False,
        causal=False,
    )


class LocalEncoder(nn.Module):
    """Makes a row of a frame: of its latents and a special row before them, that row's result."""

    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__()
        local = config.encoder_config
        self.special_token = nn.Parameter(torch.zeros(1, 1, 1, local.hidden_dim))
        self.in_proj: nn.Module = nn.Linear(LATENT_SIZE, local.hidden_dim)
        self.encoder = DecoderStack(local_stack_config(config, local))
        self.native_encoder: NativeStack | None = None

    def forward(self, latents: Tensor) -> Tensor:
        """Frames [N, W] -> [N, size]."""
        rows = self.in_proj(latents.view(-1, LATENTS, LATENT_SIZE))
        first = self.special_token[0].expand(len(rows), -1, -1)
        return (self.native_encoder or self.encoder).together(torch.cat([first, rows], dim=1))[:, 0]


class Quantizer(nn.Module):
    """Rounds a few projections of a hidden state: [..., C] -> [..., C]."""

    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__()
        size, inner = config.lm_config.hidden_size, config.scalar_quantization_latent_dim
        self.scale = config.scalar_quantization_scale
        self.in_proj: nn.Module = nn.Linear(size, inner)
        self.out_proj: nn.Module = nn.Linear(inner, size)

    def forward(self, hidden: Tensor) -> Tensor:
        levels = torch.round(torch.tanh(self.in_proj(hidden)) * self.scale) / self.scale
        out: Tensor = self.out_proj(levels)
        return out


class SharedCache(KVCache):
    """The layers of both models in one memory.

    Attributes:
        base, residual: each model's part.
    """

    def __init__(self, config: StackConfig, slots: int, max_length: int, like: Tensor, models: Sequence[Stack]) -> None:
        """`config` is that of all layers, `models` are the two in their order."""
        super().__init__(config, slots, max_length, like)
        base, residual = (model.config for model in models)
        layers = base.num_hidden_layers
        self.base = self.part(slice(0, layers), base, like)
        self.residual = self.part(slice(layers, layers + residual.num_hidden_layers), residual, like)


class BaseModel(DecoderStack):
    """The base model and its table of tokens."""

    def __init__(self, config: StackConfig, tokens: int) -> None:
        super().__init__(config)
        self.embed_tokens = empty_table(tokens, config.hidden_size)


class LanguageModels(nn.Module):
    """A `Stack` of I numbers in and H out. Names are official.

    Attributes:
        native: the native forms of both models, in their order, which take the place of torch's; empty: there are none.
    """

    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__()
        lm = config.lm_config
        base = StackConfig(
            hidden_size=lm.hidden_size,
            intermediate_size=lm.intermediate_size,
            num_hidden_layers=lm.num_hidden_layers,
            num_attention_heads=lm.num_attention_heads,
            num_key_value_heads=lm.num_key_value_heads,
            head_dim=lm.kv_channels,
            rms_norm_eps=lm.rms_norm_eps,
            rope_theta=lm.rope_theta,
            rope_factors=lm.rope_scaling.short_factor,
            qk_norm=False,
        )
        layers = config.residual_lm_num_layers
        self.config = replace(base, num_hidden_layers=base.num_hidden_layers + layers)
        self.base_lm = BaseModel(base, lm.vocab_size)
        self.residual_lm = DecoderStack(replace(base, num_hidden_layers=layers, rope="none", rope_factors=None))
        self.feat_encoder = LocalEncoder(config)
        self.fsq_layer = Quantizer(config)
        self.enc_to_lm_proj: nn.Module = nn.Linear(config.encoder_config.hidden_dim, lm.hidden_size)
        self.fusion_concat_proj: nn.Module = nn.Linear(2 * lm.hidden_size, lm.hidden_size)
        self.native: tuple[NativeStack, ...] = ()

    @property
    def input_size(self) -> int:
        return self.config.hidden_size + 1 + WIDTH

    @property
    def hidden_size(self) -> int:
        return 2 * self.config.hidden_size + WIDTH

    @property
    def like(self) -> Tensor:
        return self.base_lm.like

    @property
    def varlen(self) -> bool:
        return all(model.varlen for model in self._models)

    @property
    def repeatable(self) -> bool:
        return all(model.repeatable for model in self._models)

    def prepare(self, graphs: bool) -> None:
        for model in self._models:
            model.prepare(graphs)

    def new_cache(self, slots: int, max_length: int) -> SharedCache:
        return SharedCache(self.config, slots, max_length, self.like, self._models)

    def token_rows(self, tokens: Tensor) -> Tensor:
        """Tokens' embeddings [N, C] -> [N, I]."""
        return torch.cat([tokens, tokens.new_zeros(len(tokens), 1 + WIDTH)], dim=1)

    def frame_rows(self, frames: Tensor) -> Tensor:
        """[N, W] -> [N, I]."""
        frames = frames.to(self.like.dtype)
        tokens = frames.new_zeros(len(frames), self.config.hidden_size)
        return torch.cat([tokens, frames.new_ones(len(frames), 1), frames], dim=1)

    def parts(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """[N, H] -> the base model's results [N, C], the residual model's [N, C], the frames [N, W]."""
        size = self.config.hidden_size
        return torch.split(hidden, [size, size, WIDTH], dim=1)

    @torch.inference_mode()
    def prefill(self, cache: KVCache, slot: int, embeds: Tensor, offset: int = 0) -> Tensor:
        tokens, is_frame, frames = self._columns(embeds)
        read = tokens.clone()
        if len(places := is_frame[:, 0].nonzero()[:, 0]):  # this waits for a GPU; graphs call `prefill_together`
            read[places] = self._encode(frames[places])
        positions = torch.arange(offset, offset + len(embeds), device=embeds.device)
        slots = torch.tensor([slot], device=embeds.device)
        owner = torch.zeros_like(positions)

        def together(model: Stack, part: KVCache, x: Tensor) -> Tensor:
            hidden: Tensor = model.prefill_together(part, slots, owner, positions, x, offset + len(embeds))
            return hidden

        return self._read(cache, read, is_frame, frames, together)[-1]

    @torch.inference_mode()
    def decode(
        self,
        cache: KVCache,
        slots: Sequence[int],
        positions: Sequence[int],
        embeds: Tensor,
        seen: Sequence[int] | None = None,
    ) -> Tensor:
        return self._read_frames(cache, embeds, lambda model, part, x: model.decode(part, slots, positions, x, seen))

    @torch.inference_mode()
    def decode_first(self, cache: KVCache, positions: Tensor, embeds: Tensor, length: int) -> Tensor:
        return self._read_frames(cache, embeds, lambda model, part, x: model.decode_first(part, positions, x, length))

    @torch.inference_mode()
    def prefill_together(
        self,
        cache: KVCache,
        slots: Tensor,
        owner: Tensor,
        positions: Tensor,
        embeds: Tensor,
        length: int,
        begins: Tensor | None = None,
    ) -> Tensor:
        tokens, is_frame, frames = self._columns(embeds)
        read = torch.where(is_frame, self._encode(frames), tokens)

        def together(model: Stack, part: KVCache, x: Tensor) -> Tensor:
            hidden: Tensor = model.prefill_together(part, slots, owner, positions, x, length, begins)
            return hidden

        return self._read(cache, read, is_frame, frames, together)

    @property
    def _models(self) -> tuple[Stack, ...]:
        return self.native or (self.base_lm, self.residual_lm)

    def _columns(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, I] -> tokens [N, C], whether there is a frame instead [N, 1], frames [N, W]."""
        tokens, flags, frames = torch.split(rows, [self.config.hidden_size, 1, WIDTH], dim=1)
        return tokens, flags != 0, frames

    def _encode(self, frames: Tensor) -> Tensor:
        """[N, W] -> [N, C]."""
        encoded: Tensor = self.enc_to_lm_proj(self.feat_encoder(frames))
        return encoded

    def _read_frames(self, cache: KVCache, rows: Tensor, read: Read) -> Tensor:
        """Of rows [N, I] that are all frames -> [N, H]."""
        _, _, frames = self._columns(rows)
        return self._read(cache, self._encode(frames), torch.ones_like(frames[:, :1], dtype=torch.bool), frames, read)

    def _read(self, cache: KVCache, x: Tensor, is_frame: Tensor, frames: Tensor, read: Read) -> Tensor:
        """Both models read: what the base model gets [N, C], then as of `_columns` -> [N, H]."""
        assert isinstance(cache, SharedCache)
        base, residual = self._models
        hidden = read(base, cache.base, x.clone())
        hidden = torch.where(is_frame, self.fsq_layer(hidden), hidden)
        heard = torch.where(is_frame, x, torch.zeros_like(x))
        made = read(residual, cache.residual, self.fusion_concat_proj(torch.cat([hidden, heard], dim=1)))
        return torch.cat([hidden, made, frames], dim=1)
