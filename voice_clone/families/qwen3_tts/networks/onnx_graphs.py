"""What each ONNX graph computes: the networks of Qwen3-TTS in forms that an exporter can trace at any length.

    speaker_encoder   waveform FP32 [B, T] -> speaker_embedding FP32 [B, D]
    codec_encoder     waveform FP32 [B, T] -> codec_codes INT32 [B, ceil(T / 1920), K]

What differs from the torch modules computes the same: the short-time Fourier transform is a convolution with windowed
cosines and sines, which every execution provider has; distances to codes are a matrix product.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
from voice_clone.families.qwen3_tts.networks.speaker_clip import HOP, N_FFT, PADDING, mel_filterbank, min_samples
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
from voice_clone.layers.rvq import ResidualEncoder
from voice_clone.onnx.export import Graph

SPEAKER_ENCODER, CODEC_ENCODER = "speaker_encoder", "codec_encoder"


def speaker_encoder(encoder: SpeakerEncoder) -> Graph:
    """Waveform -> speaker embedding, the log-mel front end included."""
    axes = {"waveform": {0: "batch", 1: "samples"}, "speaker_embedding": {0: "batch"}}
    example = torch.zeros(2, 2 * min_samples(encoder.config))
    return Graph(SPEAKER_ENCODER, _SpeakerEncoder(encoder), (example,), ("waveform",), ("speaker_embedding",), axes)


def codec_encoder(encoder: CodecEncoder) -> Graph:
    """Waveform -> codec codes."""
    axes = {"waveform": {0: "batch", 1: "samples"}, "codec_codes": {0: "batch", 1: "frames"}}
    module = _CodecEncoder(encoder)
    return Graph(CODEC_ENCODER, module, (torch.zeros(2, 12345),), ("waveform",), ("codec_codes",), axes)


class _LogMel(nn.Module):
    """`speaker_encoder.log_mel` for a batch: waveform [B, T] -> [B, frames, mel_dim]."""

    basis: Tensor
    filterbank: Tensor

    def __init__(self, mel_dim: int, sample_rate: int) -> None:
        super().__init__()
        bins, samples = torch.arange(N_FFT // 2 + 1)[:, None], torch.arange(N_FFT)
        angles = (bins * samples % N_FFT).double() * (2 * math.pi / N_FFT)  # [513, 1024]
        window = torch.hann_window(N_FFT, dtype=torch.float64)
        basis = torch.cat((angles.cos(), -angles.sin())) * window  # the real parts, then the imaginary ones
        self.register_buffer("basis", basis.float()[:, None])  # [1026, 1, 1024]
        filterbank = torch.from_numpy(mel_filterbank(mel_dim, sample_rate))
        self.register_buffer("filterbank", filterbank)

    def forward(self, waveform: Tensor) -> Tensor:
        padded = F.pad(waveform[:, None], (PADDING, PADDING), mode="reflect")
        real, imaginary = F.conv1d(padded, self.basis, stride=HOP).chunk(2, dim=1)  # [B, 513, frames]
        magnitude = torch.sqrt(real.square() + imaginary.square() + 1e-9)
        return torch.log((self.filterbank @ magnitude).clamp(min=1e-5)).transpose(1, 2)


class _SpeakerEncoder(nn.Module):
    def __init__(self, encoder: SpeakerEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.log_mel = _LogMel(encoder.config.mel_dim, encoder.config.sample_rate)

    def forward(self, waveform: Tensor) -> Tensor:
        embedding: Tensor = self.encoder(self.log_mel(waveform))
        return embedding


class _CodecEncoder(nn.Module):
    def __init__(self, encoder: CodecEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, waveform: Tensor) -> Tensor:
        latent = self.encoder.latent(waveform)  # [B, C, frames]
        quantizer = self.encoder.quantizer
        semantic = _encode(quantizer.semantic_residual_vector_quantizer, latent)
        codes = semantic + _encode(quantizer.acoustic_residual_vector_quantizer, latent)
        return torch.stack(codes, dim=-1).to(torch.int32)


def _encode(quantizer: ResidualEncoder, latent: Tensor) -> list[Tensor]:
    """latent [B, C, T] -> the codes [B, T] of each codebook."""
    residual = quantizer.input_proj(latent).transpose(1, 2)  # [B, T, D]
    codes = []
    for codebook in quantizer.codebooks:
        vectors = codebook.vectors  # [size, D]
        # |x - v|² without |x|², which is the same for all codes
        distances = vectors.square().sum(-1) - 2.0 * (residual @ vectors.T)
        codes.append(distances.argmin(dim=-1))
        residual = residual - F.embedding(codes[-1], vectors)
    return codes
