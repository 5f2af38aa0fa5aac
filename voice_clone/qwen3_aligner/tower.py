"""The encoder of the sound in torch: Whisper's mel frames to rows of the decoder, 13 a second.

Three strided convolutions over time and bands, then a pre-norm transformer whose rows see those of their window alone.
Names are those of the checkpoint below `thinker.audio_tower.`, but that queries, keys and values are one layer.
Source: qwen-asr 0.0.6, `Qwen3ASRAudioEncoder`. There, only FlashAttention keeps to windows, and without it all rows see
each other. The windows are right: transformers and vLLM always have them.

Shapes: N mel frames, T rows, C the transformer's width, O numbers of a row.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.layers.attention import attend, split_heads
from voice_clone.layers.fused import fused_linear
from voice_clone.layers.graphs import to_device
from voice_clone.layers.mel import WHISPER_BANDS
from voice_clone.qwen3_aligner.config import CHUNK, AudioConfig

TOGETHER = 8  # chunks in one call of the convolutions; each takes some 10 MB
LONGEST_WAVE = 10_000.0  # of the sines of positions


class Attention(nn.Module):
    """Self-attention with biases."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        size = config.d_model
        self.head_dim = size // config.encoder_attention_heads
        parts = dict.fromkeys(("q_proj", "k_proj", "v_proj"), size)
        self.qkv_proj = fused_linear(self, "qkv_proj", size, parts, bias=True)
        self.out_proj = nn.Linear(size, size)

    def forward(self, x: Tensor, window: int) -> Tensor:
        """[T, C] -> [T, C]; each `window` rows see each other."""
        qkv = split_heads(self.qkv_proj(x)[None], self.head_dim)
        windows = [torch.chunk(part, 3, dim=1) for part in torch.split(qkv, window, dim=2)]
        seen = [attend(q, k, v)[0] for q, k, v in windows]
        out: Tensor = self.out_proj(torch.cat(seen))
        return out


class Layer(nn.Module):
    """A layer of the transformer; arguments as of `Attention`."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.fc1 = nn.Linear(config.d_model, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def forward(self, x: Tensor, window: int) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x), window)
        out: Tensor = x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))
        return out


class AudioTower(nn.Module):
    """The whole encoder."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        channels, size = config.downsample_hidden_size, config.d_model
        self.window = rows_of(CHUNK) * (config.n_window_infer // CHUNK)
        self.conv2d1 = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.conv2d2 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.conv2d3 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.conv_out = nn.Linear(channels * _halved(WHISPER_BANDS), size, bias=False)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.encoder_layers))
        self.ln_post = nn.LayerNorm(size)
        self.proj1, self.proj2 = nn.Linear(size, size), nn.Linear(size, config.output_dim)

    def forward(self, frames: Tensor) -> Tensor:
        """[128, N] -> [`rows_of`(N), O]. All chunks but the last have `CHUNK` frames; a last one behind others is
        padded with zeros, and only its own rows are kept.
        """
        chunks = nn.utils.rnn.pad_sequence(list(torch.split(frames.T, CHUNK)), batch_first=True).transpose(1, 2)
        x = torch.cat([self._convolved(some) for some in torch.split(chunks, TOGETHER)])  # [chunks, rows of a chunk, C]
        x = x + to_device(_sines(x.shape[1], x.shape[2]), x.device, x.dtype)
        x = x.flatten(0, 1)[: rows_of(frames.shape[1])]
        for layer in self.layers:
            x = layer(x, self.window)
        out: Tensor = self.proj2(F.gelu(self.proj1(self.ln_post(x))))
        return out

    def _convolved(self, chunks: Tensor) -> Tensor:
        """[B, 128, frames] -> [B, rows, C]."""
        x = chunks[:, None]
        for convolution in (self.conv2d1, self.conv2d2, self.conv2d3):
            x = F.gelu(convolution(x))
        out: Tensor = self.conv_out(x.permute(0, 3, 1, 2).flatten(2))
        return out


def rows_of(frames: int) -> int:
    """How many rows the encoder makes of so many frames."""
    return frames // CHUNK * _halved(CHUNK) + _halved(frames % CHUNK)


def _halved(size: int) -> int:
    """What three convolutions of stride 2 leave of a length."""
    return -(-size // 8)


@lru_cache(maxsize=2)
def _sines(rows: int, size: int) -> Tensor:
    """What is added for the place of a row in its chunk, float32 [rows, size]: sines of all waves, then cosines."""
    step = math.log(LONGEST_WAVE) / (size // 2 - 1)
    angles = torch.arange(rows)[:, None] * torch.exp(-step * torch.arange(size // 2).float())
    return torch.cat([angles.sin(), angles.cos()], dim=1)
