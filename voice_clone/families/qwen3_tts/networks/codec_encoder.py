"""Codec encoder: waveform to codec codes. Mimi's encoder (Defossez et al. 2024) as Qwen3-TTS 12 Hz uses it.

SEANet convolutions (24 kHz -> 25 Hz), a causal transformer, a convolution to 12.5 Hz, split residual vector
quantisation. Sources: transformers 4.57.3 `modeling_mimi.py`; qwen-tts 0.1.1 `Qwen3TTSTokenizerV2Encoder`.
Module names are those of `speech_tokenizer/model.safetensors` below `encoder.`. Tensors there that encoding
does not need (codebooks past the valid ones, output projections) are not loaded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.array_kinds import Numbers
from voice_clone.families.qwen3_tts.config import CodecEncoderConfig
from voice_clone.layers.attention import LayerScale, apply_rotary, attend, rotary_cos_sin, split_heads
from voice_clone.layers.convolution import CausalConv1d
from voice_clone.layers.rvq import SplitResidualEncoder


class ResidualBlock(nn.Module):
    """SEANet residual unit: a dilated convolution to fewer channels and a pointwise one back."""

    def __init__(self, config: CodecEncoderConfig, dim: int, dilation: int) -> None:
        super().__init__()
        hidden = dim // config.compress
        self.block = nn.Sequential(
            nn.ELU(),
            CausalConv1d(dim, hidden, config.residual_kernel_size, dilation=dilation),
            nn.ELU(),
            CausalConv1d(hidden, dim, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.block(x)
        return x + hidden


class SEANetEncoder(nn.Module):
    """waveform [B, 1, T] -> [B, hidden, ceil(T / product of the ratios)] (Tagliasacchi et al. 2020)."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        dim = config.num_filters
        layers: list[nn.Module] = [CausalConv1d(config.audio_channels, dim, config.kernel_size)]
        for ratio in reversed(config.upsampling_ratios):
            layers += [
                ResidualBlock(config, dim, config.dilation_growth_rate**level)
                for level in range(config.num_residual_layers)
            ]
            layers += [nn.ELU(), CausalConv1d(dim, 2 * dim, 2 * ratio, stride=ratio)]
            dim *= 2
        layers += [nn.ELU(), CausalConv1d(dim, config.hidden_size, config.last_kernel_size)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class Attention(nn.Module):
    """Causal self-attention over the whole clip. Mimi's sliding window of 250 is not applied by the official code."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        hidden, self.head_dim = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(hidden, config.num_attention_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, config.num_key_value_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, config.num_key_value_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = apply_rotary(split_heads(self.q_proj(x), self.head_dim), cos, sin)
        k = apply_rotary(split_heads(self.k_proj(x), self.head_dim), cos, sin)
        v = split_heads(self.v_proj(x), self.head_dim)
        out: Tensor = self.o_proj(attend(q, k, v, is_causal=True))
        return out


class MLP(nn.Module):
    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class TransformerLayer(nn.Module):
    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), cos, sin))
        x = x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return x


class Transformer(nn.Module):
    """[B, T, C] -> [B, T, C], without a final norm."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.head_dim, self.rope_theta = config.head_dim, config.rope_theta
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = rotary_cos_sin(torch.arange(x.shape[1], device=x.device), self.head_dim, self.rope_theta)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


class CodecEncoder(nn.Module):
    """24 kHz speech to the codes of the first `num_quantizers` codebooks."""

    def __init__(self, config: CodecEncoderConfig, num_quantizers: int) -> None:
        super().__init__()
        self.encoder = SEANetEncoder(config)
        self.encoder_transformer = Transformer(config)
        self.downsample = CausalConv1d(  # 25 Hz -> 12.5 Hz
            config.hidden_size, config.hidden_size, kernel_size=4, stride=2, bias=False, pad_mode="replicate"
        )
        self.quantizer = SplitResidualEncoder(
            num_quantizers,
            config.num_semantic_quantizers,
            config.codebook_size,
            config.codebook_dim,
            config.hidden_size,
        )

    @torch.inference_mode()
    def encode(self, waveform: Numbers) -> Tensor:
        """Codes of one clip.

        Args:
            waveform: float [T], mono, 24 kHz, T >= 1; a frame cut short at the end counts as a whole one.

        Returns:
            int64 [ceil(T / 1920), num_quantizers], semantic codebook first.
        """
        like = self.downsample.conv.weight
        latent = self.latent(torch.as_tensor(waveform).to(like.device, like.dtype)[None])
        codes: Tensor = self.quantizer.encode(latent)  # [1, K, frames]
        return codes[0].T.contiguous()

    def latent(self, waveform: Tensor) -> Tensor:
        """What is quantised: [B, T] -> [B, C, frames]."""
        x = self.encoder(waveform[:, None])  # [B, C, 25 Hz]
        x = self.encoder_transformer(x.transpose(1, 2)).transpose(1, 2)
        latent: Tensor = self.downsample(x)
        return latent
