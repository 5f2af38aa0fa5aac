"""Codec frames to audio: a `voice_clone.stages.protocols.DecoderStage`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.batching.source import PayloadForm
from voice_clone.codec.decoder import CodecFormat
from voice_clone.codec.native_chains import add_transformer, take, waveform_chain
from voice_clone.codec.native_decoder import NativeWindowedDecoder
from voice_clone.codec.windowed_decoder import WindowedDecoder
from voice_clone.families.fish_speech.checkpoint import Checkpoint
from voice_clone.families.fish_speech.config import (
    CODEC,
    DECODER_RATES,
    FRAME_SAMPLES,
    HEAD_DIM,
    NORM_EPS,
    QUANTIZER_RATES,
    QUANTIZER_WINDOW,
    ROPE_THETA,
    SAMPLE_RATE,
    CodecConfig,
)
from voice_clone.families.fish_speech.family import CARD
from voice_clone.layers.convolution import Upsample
from voice_clone.layers.fused import empty_table
from voice_clone.layers.rvq import CodeVectors
from voice_clone.layers.streaming import ChunkPass
from voice_clone.layers.vocoder import Snake, Vocoder
from voice_clone.layers.window_transformer import WindowConfig, WindowTransformer
from voice_clone.native.arrays import Array
from voice_clone.native.codec.chain import Chain
from voice_clone.native.codec.chain_builder import ChainBuilder
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.stages.decoder import CardDecoder, DecoderNetwork


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


def semantic_codebooks(config: CodecConfig, kind: type[Codebook]) -> Codebooks:
    """The first codebook."""
    return Codebooks(kind, 1, config.latent_dim, config.semantic_codes, config.codebook_dim)


def residual_codebooks(config: CodecConfig, kind: type[Codebook]) -> Codebooks:
    """The others."""
    return Codebooks(kind, config.residual_books, config.latent_dim, config.residual_codes, config.codebook_dim)


class DecoderQuantizer(nn.Module):
    """Codes int64 [B, K, n] -> latent [B, latent, n]."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.semantic_quantizer = semantic_codebooks(config, Codebook)
        self.quantizer = residual_codebooks(config, Codebook)
        self.post_module = WindowTransformer(quantizer_transformer(config))
        self._vectors = CodeVectors()

    @property
    def books(self) -> list[Codebook]:
        """All codebooks, the first one first."""
        books = [*self.semantic_quantizer.quantizers, *self.quantizer.quantizers]
        return [book for book in books if isinstance(book, Codebook)]

    def forward(self, codes: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        if codes.is_cuda:
            total = self._vectors(codes, self.post_module.norm.weight, lambda: [book.vectors for book in self.books])
        else:
            first, second, *others = (book.decode(codes[:, place]) for place, book in enumerate(self.books))
            for other in others:
                second = second + other
            total = (first + second).transpose(1, 2)
        latent: Tensor = self.post_module(total, stream, position)
        return latent.transpose(1, 2)


class CodecDecoder(WindowedDecoder):
    """Codec codes to 44.1 kHz speech."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        latent = config.latent_dim
        self.quantizer = DecoderQuantizer(config)
        self.upsample = nn.ModuleList(Upsample(latent, factor) for factor in reversed(QUANTIZER_RATES))
        self.decoder = Vocoder(latent, config.decoder_dim, DECODER_RATES, Snake)

    @property
    def device(self) -> torch.device:
        return self.quantizer.post_module.norm.weight.device

    def latent(self, codes: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        latent: Tensor = self.quantizer(codes, stream, position)
        return latent

    def bound(self, waveform: Tensor) -> Tensor:
        return waveform.tanh()

    @torch.no_grad()
    def latent_chain(self) -> Chain:
        """As of `WindowedDecoder`. All projections are one, and its result is their sum."""
        weights, biases = zip(*(take(book.out_proj) for book in self.quantizer.books), strict=True)
        weight = torch.cat([each[..., 0] for each in weights], dim=1)
        chain = ChainBuilder(weight.shape[1])
        chain.linear(weight, torch.stack(biases).sum(0), residual="set")
        add_transformer(chain, self.quantizer.post_module)
        return chain.build()

    @torch.no_grad()
    def waveform_chain(self) -> Chain:
        """As of `WindowedDecoder`."""
        return waveform_chain(self, len(self.quantizer.post_module.norm.weight))


class NativeCodecDecoder(NativeWindowedDecoder):
    """As `CodecDecoder`."""

    def __init__(self, load: Callable[[], CodecDecoder], packed: PackedFile = NOWHERE) -> None:
        self._books = packed.part("codebooks")(
            lambda: [book.codebook.weight.detach().numpy() for book in load().quantizer.books]
        )
        super().__init__(load, packed)

    def vectors(self, codes: Array) -> Array:
        """The codes' vectors side by side."""
        return np.concatenate([book[codes[:, place]] for place, book in enumerate(self._books)], axis=-1)

    def bound(self, samples: Array) -> Array:
        return torch.from_numpy(np.ascontiguousarray(samples)).tanh().numpy()


def codec_format(codec: CodecConfig) -> CodecFormat:
    """The frames of a checkpoint's codec."""
    limits = codec.code_limits
    return CodecFormat(PayloadForm(len(limits), np.uint16), FRAME_SAMPLES, SAMPLE_RATE, limits)


class FishSpeechDecoder(CardDecoder):
    """A stream is decoded without its reference, as the official code does it."""

    card = CARD

    @staticmethod
    def network(folder: Path) -> DecoderNetwork[CodecDecoder]:
        checkpoint = Checkpoint(folder)
        codec = checkpoint.codec
        make, form = lambda: CodecDecoder(codec), codec_format(codec)
        return DecoderNetwork(checkpoint, CODEC, "", make, form, codec, NativeCodecDecoder)


load_decoder, load_torch_decoder = FishSpeechDecoder.load, FishSpeechDecoder.load_torch
