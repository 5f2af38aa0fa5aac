"""A clip to the artifacts of its voice: a `voice_clone.stages.protocols.EncoderStage`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.families.fish_speech.checkpoint import Checkpoint
from voice_clone.families.fish_speech.config import (
    CODEC,
    ENCODER_RATES,
    ENCODER_WINDOW,
    FRAME_SAMPLES,
    HEAD_DIM,
    NORM_EPS,
    QUANTIZER_RATES,
    QUANTIZER_WINDOW,
    ROPE_THETA,
    SAMPLE_RATE,
    CodecConfig,
    FishSpeechConfig,
)
from voice_clone.families.fish_speech.family import CARD
from voice_clone.layers.convolution import CausalConv1d, ConvNeXtBlock
from voice_clone.layers.fused import empty_table
from voice_clone.layers.streaming import ChunkPass, in_pieces
from voice_clone.layers.vocoder import EncoderBlock, Snake
from voice_clone.layers.window_transformer import WindowConfig, WindowTransformer
from voice_clone.stages.encoder import CardEncoder

PIECE_FRAMES = 64  # encoded at once


def transformer_config(size: int, intermediate: int, layers: int, window: int) -> WindowConfig:
    """A transformer of the codec; its rotary tables are rounded to bf16."""
    return WindowConfig(
        hidden_size=size,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=size // HEAD_DIM,
        num_key_value_heads=size // HEAD_DIM,
        head_dim=HEAD_DIM,
        sliding_window=window,
        rms_norm_eps=NORM_EPS,
        rope_theta=ROPE_THETA,
        rope_dtype=torch.bfloat16,
    )


def quantizer_transformer(config: CodecConfig) -> WindowConfig:
    """Of those before and behind the quantizer."""
    return transformer_config(
        config.latent_dim, config.quantizer_intermediate, config.quantizer_layers, QUANTIZER_WINDOW
    )


class Codebook(nn.Module):
    """The vectors of a codebook's codes, and the projection from them. [.., D] and [B, C, T]."""

    def __init__(self, latent: int, size: int, dim: int) -> None:
        super().__init__()
        self.out_proj = nn.Conv1d(dim, latent, 1)
        self.codebook = empty_table(size, dim)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, T] -> [B, C, T]."""
        out: Tensor = self.out_proj(self.codebook(codes).transpose(1, 2))
        return out

    @property
    def vectors(self) -> Tensor:
        """The projected vectors of all codes, [size, C]."""
        return F.linear(self.codebook.weight, self.out_proj.weight[..., 0], self.out_proj.bias)


class Quantizer(Codebook):
    """Also finds the nearest code, by the angle between vectors (Yu et al. 2022)."""

    def __init__(self, latent: int, size: int, dim: int) -> None:
        super().__init__(latent, size, dim)
        self.in_proj = nn.Conv1d(latent, dim, 1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, C, T] -> codes int64 [B, T] and their projected vectors, [B, C, T]."""
        rows = F.normalize(self.in_proj(x).transpose(1, 2).flatten(0, 1))  # [B * T, D]
        vectors = F.normalize(self.codebook.weight)
        # The distance in the official form: another rounding could choose another code.
        distances = rows.pow(2).sum(1, keepdim=True) - 2 * rows @ vectors.T + vectors.pow(2).sum(1)
        codes = (-distances).argmax(dim=1).view(x.shape[0], -1)
        return codes, self.decode(codes)


class Codebooks(nn.Module):
    """The codebooks of a residual quantizer."""

    def __init__(self, kind: type[Codebook], count: int, latent: int, size: int, dim: int) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(kind(latent, size, dim) for _ in range(count))


class SplitQuantizer(nn.Module):
    """The first codebook has codes of its own; the others quantize what it leaves."""

    def __init__(self, config: CodecConfig, kind: type[Codebook]) -> None:
        super().__init__()
        latent, dim = config.latent_dim, config.codebook_dim
        self.semantic_quantizer = Codebooks(kind, 1, latent, config.semantic_codes, dim)
        self.quantizer = Codebooks(kind, config.residual_books, latent, config.residual_codes, dim)

    @property
    def books(self) -> list[Any]:
        return [*self.semantic_quantizer.quantizers, *self.quantizer.quantizers]


class AttendingBlock(EncoderBlock):
    """An `EncoderBlock`, then maybe a transformer."""

    def __init__(self, dim: int, rate: int, transformer: WindowConfig | None) -> None:
        super().__init__(dim, rate, Snake)
        if transformer is not None:
            self.block.append(WindowTransformer(transformer))

    def encode(self, x: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        """x [B, C / 2, T]; `position` int64 [B], of the first step behind the convolution."""
        x = self(x, stream)
        for transformer in self.block[self.convolutional :]:
            x = transformer(x.transpose(1, 2), stream, position).transpose(1, 2)
        return x


class Encoder(nn.Module):
    """Waveform [B, 1, T] -> [B, latent, T / 512]."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        dim = config.encoder_dim
        self.block = nn.ModuleList([CausalConv1d(1, dim, 7)])
        last = transformer_config(config.latent_dim, config.encoder_intermediate, config.encoder_layers, ENCODER_WINDOW)
        transformers = [*[None] * (len(ENCODER_RATES) - 1), last]
        for rate, transformer in zip(ENCODER_RATES, transformers, strict=True):
            dim *= 2
            self.block.append(AttendingBlock(dim, rate, transformer))
        self.block.extend([Snake(dim), CausalConv1d(dim, config.latent_dim, 3)])

    def forward(self, x: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        first, *blocks, snake, last = self.block
        x = stream(first, x)
        for block in blocks:
            assert isinstance(block, AttendingBlock)
            x = block.encode(x, stream, position)
        return stream(last, snake(x))


class EncoderQuantizer(SplitQuantizer):
    """[B, latent, T / 512] -> codes int64 [B, K, T / 2048]."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__(config, Quantizer)
        latent = config.latent_dim
        self.downsample = nn.ModuleList(
            nn.ModuleList([CausalConv1d(latent, latent, rate, rate), ConvNeXtBlock(latent)]) for rate in QUANTIZER_RATES
        )
        self.pre_module = WindowTransformer(quantizer_transformer(config))

    def forward(self, x: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        for step in self.downsample:
            convolution, block = step.children()
            x = block(stream(convolution, x), stream)
        residual = self.pre_module(x.transpose(1, 2), stream, position).transpose(1, 2)
        codes = []
        for quantizer in self.books:
            chosen, quantized = quantizer.encode(residual)
            residual = residual - quantized
            codes.append(chosen)
        return torch.stack(codes, dim=1)


class CodecEncoder(nn.Module):
    """44.1 kHz speech to codes."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.quantizer = EncoderQuantizer(config)

    @torch.inference_mode()
    def encode(self, waveform: Tensor) -> Tensor:
        """Codes of one clip.

        Args:
            waveform: float [T], mono, 44.1 kHz, T >= 1; a frame cut short at the end counts as a whole one.

        Returns:
            int64 [ceil(T / 2048), K], the first codebook first.
        """
        like = self.quantizer.pre_module.norm.weight
        x = F.pad(waveform.to(like.device, like.dtype), (0, -len(waveform) % FRAME_SAMPLES))[None, None]
        steps = FRAME_SAMPLES // torch.Size(ENCODER_RATES).numel()
        codes = []
        for piece, stream, number in in_pieces(self, x, PIECE_FRAMES * FRAME_SAMPLES):
            latent = self.encoder(piece, stream, number * PIECE_FRAMES * steps)
            codes.append(self.quantizer(latent, stream, number * PIECE_FRAMES))
        return torch.cat(codes, dim=-1)[0].T.contiguous()


class FishSpeechEncoder(CardEncoder[FishSpeechConfig]):
    """Waveform to codec codes, uint16 [frames, codebooks]."""

    card, files, file, sample_rate = CARD, Checkpoint, CODEC, SAMPLE_RATE

    @staticmethod
    def empty_network(checkpoint: Checkpoint) -> CodecEncoder:
        return CodecEncoder(checkpoint.codec)

    @property
    def width(self) -> int:
        return self.config.codebooks


load_encoder = FishSpeechEncoder.load
