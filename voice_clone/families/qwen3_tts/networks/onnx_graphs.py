"""What each ONNX graph computes: the networks of Qwen3-TTS in forms that an exporter can trace at any length.

    speaker_encoder   waveform FP32 [B, T] -> speaker_embedding FP32 [B, D]
    codec_encoder     waveform FP32 [B, T] -> codec_codes INT32 [B, ceil(T / 1920), K]
    code2wav_step     codes INT64 [B, K, n], frames INT64 [m], state.position INT64 [B], state.* FP32 [B, ...]
                      -> waveform FP32 [B, m * 1920], next.position, next.*
    code2wav          codes INT64 [B, K, n] -> waveform FP32 [B, n * 1920]

`code2wav_step` decodes the next n frames of B streams and moves their states on. `frames` picks those whose samples are
wanted: 0..n-1 to decode; the last few to prime, for the convolutions behind the transformer remember no more.

`code2wav` is the form without state: give it left context before the new frames and drop the context's samples. With
all frames since the stream's start as context it is exact; the official package takes 25.

What differs from the torch modules computes the same: the short-time Fourier transform is a convolution with windowed
cosines and sines, which every execution provider has; distances to codes are a matrix product; a chunk's convolutions
have one form, whatever its length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
from voice_clone.families.qwen3_tts.networks.speaker_clip import HOP, N_FFT, PADDING, mel_filterbank, min_samples
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d
from voice_clone.layers.rvq import ResidualEncoder
from voice_clone.layers.streaming import ChunkPass
from voice_clone.onnx.session import Axes, Graph

if TYPE_CHECKING:  # it imports numba, which an encoder's process does without
    from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder

SPEAKER_ENCODER, CODEC_ENCODER = "speaker_encoder", "codec_encoder"
CODE2WAV_STEP, CODE2WAV = "code2wav_step", "code2wav"
STATE, NEXT = "state.", "next."  # prefixes of a state's names: as an input, as an output


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


def code2wav_step(decoder: CodecDecoder, codebooks: int) -> Graph:
    """The next frames of streams; their states come in and go out."""
    state = decoder.new_state(2)
    names = [name for name, module in decoder.named_modules() if module in decoder.slots]
    kept = [slot for slot, buffer in enumerate(state.buffers) if buffer.numel()]
    tensors = [state.position, *(state.buffers[slot] for slot in kept)]
    stateful = ["position", *(names[slot] for slot in kept)]
    inputs = ("codes", "frames", *(STATE + name for name in stateful))
    outputs = ("waveform", *(NEXT + name for name in stateful))
    axes: Axes = {name: {0: "batch"} for name in (*inputs, *outputs)}
    axes |= {"codes": {0: "batch", 2: "new"}, "frames": {0: "kept"}, "waveform": {0: "batch", 1: "samples"}}
    example = (torch.zeros(2, codebooks, 5, dtype=torch.int64), torch.arange(3), *tensors)
    return Graph(CODE2WAV_STEP, _Code2WavStep(decoder, kept), example, inputs, outputs, axes)


def code2wav(decoder: CodecDecoder, codebooks: int) -> Graph:
    """All frames at once, without a state."""
    axes = {"codes": {0: "batch", 2: "frames"}, "waveform": {0: "batch", 1: "samples"}}
    example = torch.zeros(2, codebooks, 5, dtype=torch.int64)
    return Graph(CODE2WAV, _Code2Wav(decoder), (example,), ("codes",), ("waveform",), axes)


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


class _GraphPass(ChunkPass):
    """Runs convolutions in one form for all lengths."""

    def __call__(self, module: nn.Module, x: Tensor, *context: Tensor) -> Tensor:
        if isinstance(module, CausalConv1d):
            return self._convolve(module, x)
        if isinstance(module, CausalConvTranspose1d):
            return self._upsample(module, x)
        return super().__call__(module, x, *context)

    def _convolve(self, module: CausalConv1d, x: Tensor) -> Tensor:
        if module.padding:
            slot = self.slots[module]
            x = torch.cat((self.buffers[slot], x), dim=-1)
            self.buffers[slot] = x[..., -module.padding :]
        out: Tensor = module.conv(x)
        return out

    def _upsample(self, module: CausalConvTranspose1d, x: Tensor) -> Tensor:
        (stride,) = module.conv.stride
        out = F.conv_transpose1d(x, module.conv.weight, None, stride)
        if module.overlap:
            slot, done = self.slots[module], x.shape[-1] * stride
            first = out[..., : module.overlap] + self.buffers[slot]  # it is at most a stride
            self.buffers[slot] = out[..., done:]
            out = torch.cat((first, out[..., module.overlap : done]), dim=-1)
        assert module.conv.bias is not None
        return out + module.conv.bias[:, None]


class _Code2WavStep(nn.Module):
    def __init__(self, decoder: CodecDecoder, kept: Sequence[int]) -> None:
        super().__init__()
        self.decoder = decoder
        self.kept = kept  # slots of the buffers that are not empty

    def forward(self, codes: Tensor, frames: Tensor, position: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        empty = torch.zeros(0)
        given = dict(zip(self.kept, state, strict=True))
        stream = _GraphPass(self.decoder.slots, [given.get(slot, empty) for slot in range(len(self.decoder.slots))])
        latent = self.decoder.latent(codes, stream, position).index_select(-1, frames)
        waveform = self.decoder.waveform(latent, stream).clamp(-1, 1)
        return waveform, position + codes.shape[-1], *(stream.buffers[slot] for slot in self.kept)


class _Code2Wav(nn.Module):
    def __init__(self, decoder: CodecDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, codes: Tensor) -> Tensor:
        batch = codes.shape[0]
        stream = _GraphPass(self.decoder.slots, [module.new_state(batch) for module in self.decoder.slots])
        position = torch.zeros_like(codes[:, 0, 0])
        waveform: Tensor = self.decoder.waveform(self.decoder.latent(codes, stream, position), stream)
        return waveform.clamp(-1, 1)
