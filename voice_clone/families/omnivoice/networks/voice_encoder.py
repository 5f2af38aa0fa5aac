"""The voice encoder: a 24 kHz waveform to codes, by its sound (DAC) and by what is said in it (HuBERT).

Source: transformers 5.24.0, `modeling_higgs_audio_v2_tokenizer.py`; names are its state dict's.

Shapes: B signals, T frames, C channels.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.families.omnivoice.codec_config import FRAME_SAMPLES, SAMPLE_RATE, SEMANTIC_RATE, CodecConfig
from voice_clone.families.omnivoice.networks.dac import AcousticEncoder
from voice_clone.families.omnivoice.networks.hubert import SemanticModel
from voice_clone.families.omnivoice.networks.quantizer import Quantizer

SEMANTIC_PAD = 160  # zeros at both ends of what HuBERT hears
ZEROS, ROLLOFF = 6, 0.99  # of the resampler: zero crossings on each side, and where its band ends


class SemanticUnit(nn.Module):
    """A residual branch of two convolutions, each after an ELU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv1d(channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.conv2(F.elu(self.conv1(F.elu(x))))
        return x + hidden


class SemanticBlock(nn.Module):
    """Two residual units and a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.res_units = nn.ModuleList(SemanticUnit(channels) for _ in range(2))
        self.conv = nn.Conv1d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        for unit in self.res_units:
            x = unit(x)
        out: Tensor = self.conv(x)
        return out


class SemanticEncoder(nn.Module):
    """What HuBERT hears, [B, C, T] -> the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, padding=1, bias=False)
        self.conv_blocks = nn.ModuleList(SemanticBlock(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        for block in self.conv_blocks:
            x = block(x)
        return x


class VoiceEncoder(nn.Module):
    """Computed in fp32."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self._steps = config.semantic_steps
        self.acoustic_encoder = AcousticEncoder(config.acoustic_model_config)
        self.semantic_model = SemanticModel(config.semantic_model_config)
        self.encoder_semantic = SemanticEncoder(config.semantic_model_config.hidden_size)
        self.fc = nn.Linear(config.latent, config.latent)
        self.quantizer = Quantizer(config, encodes=True)

    @torch.inference_mode()
    def encode(self, waveform: Tensor) -> Tensor:
        """float32 [T * FRAME_SAMPLES], T > 0 -> codes int64 [T, K] on the weights' device."""
        if not len(waveform) or len(waveform) % FRAME_SAMPLES:
            raise ValueError(f"{len(waveform)} samples are no whole frames of {FRAME_SAMPLES}")
        waveform = waveform.to(self.fc.weight.device)[None]
        heard = F.pad(to_semantic_rate(waveform), (SEMANTIC_PAD, SEMANTIC_PAD))
        semantic = self.encoder_semantic(self.semantic_model(heard)[:, :: self._steps].transpose(1, 2))
        latents = torch.cat([self.acoustic_encoder(waveform[:, None]), semantic], dim=1)
        return self.quantizer.encode(self.fc(latents.transpose(1, 2)))[0]


def to_semantic_rate(waveform: Tensor) -> Tensor:
    """[B, samples] at 24 kHz -> at 16 kHz, rounded up.

    Band-limited by a sinc under a squared cosine: as `torchaudio.functional.resample` with its defaults.
    """
    common = math.gcd(SAMPLE_RATE, SEMANTIC_RATE)
    old, new = SAMPLE_RATE // common, SEMANTIC_RATE // common
    kernel, width = _kernel(old, new)
    padded = F.pad(waveform, (width, width + old))
    phases = F.conv1d(padded[:, None], kernel.to(waveform.device), stride=old)  # [B, new, steps]
    return phases.transpose(1, 2).flatten(1)[:, : -(-waveform.shape[1] * new // old)]


@cache
def _kernel(old: int, new: int) -> tuple[Tensor, int]:
    """One filter for each of the `new` samples that come of `old` ones, [new, 1, taps], and how far back they look.

    Smith, Digital Audio Resampling (https://ccrma.stanford.edu/~jos/resample).
    """
    band = ROLLOFF * min(old, new)
    width = math.ceil(ZEROS * old / band)
    taps = torch.arange(-width, width + old, dtype=torch.float64) / old
    times = (taps - torch.arange(new, dtype=torch.float64)[:, None] / new) * band
    times = times.clamp(-ZEROS, ZEROS)
    window = torch.cos(times * math.pi / (2 * ZEROS)).square()
    return (torch.sinc(times) * window * (band / old)).float()[:, None], width
