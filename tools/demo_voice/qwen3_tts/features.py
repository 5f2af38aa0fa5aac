"""What a codec frame sounds like, as numbers: four mel spectra show its phone; cepstra, pitch and voicing its sound.

A frame has 1920 samples (80 ms at 24 kHz). Nothing here looks past the end of its frame, so that a causal network can
learn to compute it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tools.demo_voice.qwen3_tts.cepstra import Cepstrum, causal_windows
from tools.demo_voice.synthesis import SAMPLE_RATE
from voice_clone.families.qwen3_tts.networks.speaker_clip import N_FFT, mel_filterbank

FRAME = 1920
SLICES = 4  # mel spectra a frame
BANDS = 80
HALVES = 2  # pitch values a frame
FLOOR = 1e-3  # of a mel band; speech reaches about 1
PITCH_WEIGHT = 30.0  # so that an octave counts as much as a change of vowel
VOICING_WEIGHT = 4.5
# Eight a frame: speech moves within 20 ms, and four spectra a frame miss a quarter of the motion's variance.
ENVELOPE = Cepstrum(bands=48, low=80.0, high=11000.0, coefficients=20)
_PITCH_CENTRE = 130.0  # Hz
_SEARCH = (0.6, 1.7)  # around the speaker's mean pitch, which is known: no octave errors


@dataclass(frozen=True, eq=False)
class Features:
    """Of all frames of a clip.

    Attributes:
        spectra: log-mels, [frames, 4 * 80].
        cepstra: of the frame's windows of 10 ms, [frames, 8 * 20].
        pitch: two log pitches and two voicings, weighted, [frames, 4].
    """

    spectra: Tensor
    cepstra: Tensor
    pitch: Tensor


def frame_features(samples: NDArray[np.float32], pitch: float) -> Features:
    """Features of all frames of a clip; the last one is filled up with silence.

    Args:
        samples: float32 [T], 24 kHz.
        pitch: the speaker's mean in Hz.
    """
    wave = torch.from_numpy(samples)
    frames = -(-len(wave) // FRAME)
    wave = torch.nn.functional.pad(wave, (0, frames * FRAME - len(wave)))
    found, voiced = _pitches(wave, pitch)
    track = _held(found, voiced).reshape(frames, HALVES)
    voicing = voiced.float().reshape(frames, HALVES)
    return Features(
        _mels(wave).reshape(frames, SLICES * BANDS),
        ENVELOPE.causal(wave).T.reshape(frames, -1),
        torch.cat([PITCH_WEIGHT * track, VOICING_WEIGHT * voicing], dim=1),
    )


def without_speaker(spectra: Tensor) -> Tensor:
    """Log-mels without the clip's own mean spectrum: [frames, SLICES * BANDS] -> the same."""
    mels = spectra.reshape(-1, BANDS)
    loud = mels.mean(dim=1) > np.log(FLOOR) + 1.5
    mean = mels[loud].mean(dim=0) if bool(loud.any()) else mels.mean(dim=0)
    quiet = mels <= np.log(FLOOR) + 1e-3
    return torch.where(quiet, mels.new_tensor(_SILENT), mels - mean).reshape(-1, SLICES * BANDS)


_SILENT = -4.0  # silence stays silence, whatever the mean was


@lru_cache(maxsize=1)
def _hann() -> Tensor:
    return torch.hann_window(N_FFT)


@lru_cache(maxsize=1)
def _mel_bank() -> Tensor:
    """From the magnitudes of a spectrum of `N_FFT` samples to mel bands: float32 [N_FFT / 2 + 1, BANDS]."""
    return torch.from_numpy(mel_filterbank(BANDS, SAMPLE_RATE)).T.contiguous()


def _mels(wave: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(causal_windows(wave, FRAME // SLICES, _hann())).abs()
    return torch.log((spectrum @ _mel_bank()).clamp(min=FLOOR))


def _pitches(wave: Tensor, pitch: float) -> tuple[Tensor, Tensor]:
    """Log pitch over the centre and voicing of each half frame, from the normalised autocorrelation."""
    windows = causal_windows(wave, FRAME // HALVES, _hann())
    size = 2 * N_FFT
    correlation = torch.fft.irfft(torch.fft.rfft(windows, size).abs().square(), size)[:, :N_FFT]
    taper = torch.fft.irfft(torch.fft.rfft(_hann(), size).abs().square(), size)[:N_FFT]
    power = correlation[:, :1]
    normed = correlation / power.clamp(min=1e-6) * (taper[0] / taper.clamp(min=1e-3 * taper[0]))
    low = int(SAMPLE_RATE / (_SEARCH[1] * pitch))
    high = min(int(SAMPLE_RATE / (_SEARCH[0] * pitch)), 3 * N_FFT // 4)
    strength, place = normed[:, low:high].max(dim=1)
    lag = place + low
    before, after = (normed.gather(1, (lag + step)[:, None])[:, 0] for step in (-1, 1))
    bend = (before - 2 * strength + after).clamp(max=-1e-6)
    lag = lag + (0.5 * (before - after) / bend).clamp(-0.5, 0.5)
    voiced = (strength > 0.5) & (power[:, 0] > 1e-4 * N_FFT)
    return torch.log(SAMPLE_RATE / lag / _PITCH_CENTRE), voiced


def _held(track: Tensor, voiced: Tensor) -> Tensor:
    """The last voiced value stands until the next one; zero before the first."""
    places = torch.where(voiced, torch.arange(len(track)), -1).cummax(dim=0).values
    return torch.where(places >= 0, track[places.clamp(min=0)], torch.zeros(()))
