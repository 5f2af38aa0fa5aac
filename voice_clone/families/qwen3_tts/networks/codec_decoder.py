"""code2wav: codec codes to waveform, exactly and incrementally.

Split residual vector quantisation, a convolution, a sliding-window transformer, ConvNeXt upsampling to 50 Hz and a
SnakeBeta decoder to 24 kHz. Every part is causal, so a stream may be decoded in chunks of any size: the chunks
joined equal the decode of all codes at once, and the work depends on the new frames alone.
Source: qwen-tts 0.1.1 `Qwen3TTSTokenizerV2Decoder`. Module names are those of `speech_tokenizer/model.safetensors`
below `decoder.`.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.families.qwen3_tts.config import CodecDecoderConfig
from voice_clone.layers.attention import (
    GatedMLP,
    LayerScale,
    RMSNorm,
    SlidingWindowAttention,
    rotary_cos_sin,
    sliding_window_mask,
)
from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d
from voice_clone.layers.rvq import SplitResidualDecoder
from voice_clone.layers.snake import SnakeBeta
from voice_clone.layers.streaming import ChunkPass, StreamState, streaming_slots


class ConvNeXtBlock(nn.Module):
    """ConvNeXt in one dimension (Liu et al. 2022): depthwise convolution, norm, pointwise MLP. x: [B, C, T]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = CausalConv1d(dim, dim, 7, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, 4 * dim)
        self.pwconv2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor, stream: ChunkPass) -> Tensor:
        hidden: Tensor = self.norm(stream(self.dwconv, x).transpose(1, 2))  # [B, T, C]
        hidden = self.gamma * self.pwconv2(F.gelu(self.pwconv1(hidden)))
        return x + hidden.transpose(1, 2)


class Upsample(nn.ModuleList):
    """Upsampling by `factor` without overlap, then a ConvNeXt block. x: [B, C, T]."""

    def __init__(self, dim: int, factor: int) -> None:
        super().__init__([CausalConvTranspose1d(dim, dim, factor, factor), ConvNeXtBlock(dim)])

    def forward(self, x: Tensor, stream: ChunkPass) -> Tensor:
        upsample, block = self
        out: Tensor = block(stream(upsample, x), stream)
        return out


class ResidualUnit(nn.Module):
    """A dilated and a pointwise convolution, each behind a SnakeBeta. x: [B, C, T]."""

    def __init__(self, dim: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(dim)
        self.conv1 = CausalConv1d(dim, dim, 7, dilation=dilation)
        self.act2 = SnakeBeta(dim)
        self.conv2 = CausalConv1d(dim, dim, 1)

    def forward(self, x: Tensor, stream: ChunkPass) -> Tensor:
        hidden = stream(self.conv1, self.act1(x))
        hidden = stream(self.conv2, self.act2(hidden))
        return x + hidden


class DecoderBlock(nn.Module):
    """Upsampling by `rate` to half the channels, then residual units of growing dilation. x: [B, C, T]."""

    def __init__(self, dim: int, rate: int) -> None:
        super().__init__()
        self.block = nn.ModuleList([SnakeBeta(dim), CausalConvTranspose1d(dim, dim // 2, 2 * rate, rate)])
        self.block.extend(ResidualUnit(dim // 2, dilation) for dilation in (1, 3, 9))

    def forward(self, x: Tensor, stream: ChunkPass) -> Tensor:
        snake, upsample, *units = self.block
        x = stream(upsample, snake(x))
        for unit in units:
            x = unit(x, stream)
        return x


class TransformerLayer(nn.Module):
    """Pre-norm attention and MLP, both residual branches scaled. x: [B, T, C]."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.self_attn = SlidingWindowAttention(
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            config.sliding_window,
            config.attention_bias,
        )
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, x: Tensor, stream: ChunkPass, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn_layer_scale(stream(self.self_attn, self.input_layernorm(x), cos, sin, mask))
        x = x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return x


class Transformer(nn.Module):
    """Sliding-window transformer between projections from and to the latent. x: [B, latent, T]."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.input_proj = nn.Linear(config.latent_dim, config.hidden_size)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.output_proj = nn.Linear(config.hidden_size, config.latent_dim)

    def forward(self, x: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        hidden = self.input_proj(x.transpose(1, 2))  # [B, T, C]
        length = hidden.shape[1]
        positions = position[:, None] + torch.arange(length, device=position.device)  # [B, T]
        cos, sin = rotary_cos_sin(positions, self.config.head_dim, self.config.rope_theta)
        mask = sliding_window_mask(position, length, self.config.sliding_window)
        for layer in self.layers:
            hidden = layer(hidden, stream, cos, sin, mask)
        out: Tensor = self.output_proj(self.norm(hidden)).transpose(1, 2)
        return out


class CodecDecoder(nn.Module):
    """Codec codes to 24 kHz speech."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        latent, dim = config.latent_dim, config.decoder_dim
        self.quantizer = SplitResidualDecoder(
            config.num_quantizers, 1, config.codebook_size, config.codebook_dim // 2, config.codebook_dim
        )
        self.pre_conv = CausalConv1d(config.codebook_dim, latent, 3)
        self.pre_transformer = Transformer(config)
        self.upsample = nn.ModuleList(Upsample(latent, factor) for factor in config.upsampling_ratios)
        self.decoder = nn.ModuleList([CausalConv1d(latent, dim, 7)])
        for rate in config.upsample_rates:
            self.decoder.append(DecoderBlock(dim, rate))
            dim //= 2
        self.decoder.extend([SnakeBeta(dim), CausalConv1d(dim, 1, 7)])

        self.slots = streaming_slots(self)

    @property
    def device(self) -> torch.device:
        """Where codes are expected and states lie."""
        return self.pre_conv.conv.weight.device

    def forward(self, codes: Tensor) -> Tensor:
        """All codes at once: int64 [B, K, T] -> waveform [B, T * 1920] in -1..1."""
        return self.decode_chunk(codes, self.new_state(codes.shape[0]))

    @torch.inference_mode()
    def new_state(self, batch: int) -> StreamState:
        """The state of `batch` streams before their first frame, on the weights' device."""
        buffers = [module.new_state(batch) for module in self.slots]
        return StreamState(torch.zeros(batch, dtype=torch.int64, device=buffers[0].device), buffers)

    @torch.inference_mode()
    def decode_chunk(self, codes: Tensor, state: StreamState) -> Tensor:
        """The next frames of B streams, which may be at different positions.

        Args:
            codes: int64 [B, K, n], n >= 1, each in 0..codebook_size - 1 (the caller has checked).
            state: of the same B streams; moved on to after these frames.

        Returns:
            waveform [B, n * 1920] in -1..1.
        """
        stream = ChunkPass(self.slots, state.buffers)
        waveform = self.waveform(self.latent(codes, stream, state.position), stream)
        state.position, state.buffers = state.position + codes.shape[-1], stream.buffers
        return waveform.clamp(-1, 1)

    @torch.inference_mode()
    def prime(self, codes: Tensor, state: StreamState) -> None:
        """Move fresh streams on over frames whose audio is not wanted: codes int64 [B, K, n], n >= 1.

        The transformer must see them all, but the convolutions behind it remember few frames, and they are nearly
        all of the work: they run over the last `memory` frames alone. The state equals that after `decode_chunk`.
        """
        stream = ChunkPass(self.slots, state.buffers)
        latent = self.latent(codes, stream, state.position)
        self.waveform(latent[..., -self.memory :], stream)
        state.position, state.buffers = state.position + codes.shape[-1], stream.buffers

    @cached_property
    def memory(self) -> int:
        """How many frames back the convolutions behind the transformer look."""
        frames, rate = 0.0, 1.0  # rate: steps of the signal a frame
        for upsampled in (self.upsample, self.decoder):
            for module in upsampled.modules():
                if isinstance(module, CausalConvTranspose1d):
                    frames += (module.conv.kernel_size[0] / module.conv.stride[0] - 1) / rate
                    rate *= module.conv.stride[0]
                elif isinstance(module, CausalConv1d):
                    frames += (module.conv.kernel_size[0] - 1) * module.conv.dilation[0] / rate
        return math.ceil(frames)

    def latent(self, codes: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        """Codes [B, K, n] -> latent [B, latent, n]."""
        hidden = stream(self.pre_conv, self.quantizer.decode(codes))
        latent: Tensor = self.pre_transformer(hidden, stream, position)
        return latent

    def waveform(self, latent: Tensor, stream: ChunkPass) -> Tensor:
        """Latent [B, latent, n] -> waveform [B, n * 1920], unclamped."""
        hidden = latent
        for upsample in self.upsample:
            hidden = upsample(hidden, stream)
        first, *blocks, snake, last = self.decoder
        hidden = stream(first, hidden)  # [B, dim, 4 n]
        for block in blocks:
            hidden = block(hidden, stream)
        return stream(last, snake(hidden)).squeeze(1)
