"""What the speaker encoder hears of a clip: its limits, and the bands of its log-mel frames. They need no torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voice_clone.array_kinds import Numbers, namespace
from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts.config import SpeakerEncoderConfig
from voice_clone.layers.mel import slaney_filters

N_FFT = 1024  # also the window's length
HOP = 256
FMIN = 0.0
FMAX = 12000.0
PADDING = (N_FFT - HOP) // 2


def min_samples(config: SpeakerEncoderConfig) -> int:
    """Of a clip. Reflect padding needs more samples, and more frames, than it adds on a side."""
    sizes = zip(config.enc_kernel_sizes, config.enc_dilations, strict=True)
    widest = max((kernel - 1) * dilation for kernel, dilation in sizes)
    return max(PADDING + 1, (widest // 2 + 2) * HOP)


def check_clip(waveform: Numbers, config: SpeakerEncoderConfig) -> None:
    """Raises InvalidArgument for what the speaker encoder does not take."""
    least = min_samples(config)
    if waveform.ndim != 1 or waveform.shape[0] < least:
        raise InvalidArgument(f"the reference audio must be mono and hold at least {least} samples")
    if not bool(namespace(waveform).isfinite(waveform).all()):
        raise InvalidArgument("the reference audio must hold finite samples only")


def mel_filterbank(mel_dim: int, sample_rate: int) -> npt.NDArray[np.float32]:
    """The filters of the log-mel frames, float32 [mel_dim, 513]."""
    return slaney_filters(mel_dim, sample_rate, N_FFT, FMIN, FMAX)
