"""The speech tokenizer: Whisper's frames to tokens, 25 a second (Du et al., "CosyVoice 3", 2025).

Two strided convolutions, a transformer whose attention has a memory beside it, and a rounding of eight numbers (finite
scalar quantization, Mentzer et al. 2023). The modules have the names that the nodes of the released graph show.
Shapes: B clips, T tokens, D the transformer's width. Source: s3tokenizer 0.3.0, `S3TokenizerV3`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.layers.mel import WHISPER_BANDS

HEAD_DIM = 64
MEMORY = 31  # tokens that the memory of an attention sees, its own in the middle
ROTARY_BASE = 10_000.0
LEVELS = 8  # numbers of a token, -1, 0 or 1 each
BELOW_ONE = 0.9990000128746033  # so that no level is rounded from exactly one half


class Attention(nn.Module):
    """Self-attention with rotary positions, and beside it a memory: a convolution of each channel of the values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_DIM
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.fsmn_block = nn.Conv1d(width, width, MEMORY, padding=MEMORY // 2, groups=width, bias=False)

    def forward(self, x: Tensor, present: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, T, D], and [B, T, 1] with one where there is a frame."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        heard = value * present
        memory = (self.fsmn_block(heard.transpose(1, 2)).transpose(1, 2) + heard) * present
        query, key, value = (part.unflatten(2, (self.heads, HEAD_DIM)).transpose(1, 2) for part in (query, key, value))
        query, key = (part * cos + _half_turned(part) * sin for part in (query, key))
        scores = query @ key.transpose(2, 3) / math.sqrt(HEAD_DIM) + (present - 1).transpose(1, 2)[:, None] * 1e10
        mixed: Tensor = self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2)) + memory
        return mixed


class Block(nn.Module):
    """A layer of the transformer. Arguments as of `Attention`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn, self.attn_ln = Attention(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor, present: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.attn_ln(x), present, cos, sin)
        out: Tensor = x + self.mlp(self.mlp_ln(x))
        return out


class Quantizer(nn.Module):
    """[B, T, D] -> int32 [B, T]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project_in = nn.Linear(width, LEVELS)

    def forward(self, x: Tensor) -> Tensor:
        levels = (self.project_in(x).tanh() * BELOW_ONE).round() + 1
        tokens: Tensor = (levels * 3 ** torch.arange(LEVELS, device=x.device)).sum(-1).int()
        return tokens


class SpeechTokenizer(nn.Module):
    """The whole network."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(WHISPER_BANDS, width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.quantizer = Quantizer(width)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        """float32 [B, 128, frames] and int32 [B] -> int32 [B, ceil(frames / 4)]; ceil(length / 4) of each count."""
        x = frames
        for convolution in (self.conv1, self.conv2):
            x = F.gelu(convolution(x * _present(lengths, x.shape[2])[:, None]))
            lengths = (lengths + 1) // 2
        x = x.transpose(1, 2)
        present = _present(lengths, x.shape[1])[:, :, None]
        places = torch.arange(x.shape[1], device=x.device).float()
        turns = ROTARY_BASE ** (-torch.arange(0, HEAD_DIM, 2, device=x.device).float() / HEAD_DIM)
        angles = (places[:, None] * turns).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()
        for block in self.blocks:
            x = block(x, present, cos, sin)
        tokens: Tensor = self.quantizer(x)
        return tokens


def _present(lengths: Tensor, most: int) -> Tensor:
    """float32 [B, most]: one at places below the length."""
    return (torch.arange(most, device=lengths.device) < lengths[:, None]).float()


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)
