"""Whose voice it is, by measures that no network of ours computes: pitch, and the mean spectral envelope (MFCC)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import librosa
import numpy as np
from numpy.typing import NDArray

RATE = 16000
COEFFICIENTS = 20
_LOWEST, _HIGHEST = 60.0, 360.0  # Hz, of a voice
_PITCH_WEIGHT = 4.0  # one measure beside twenty


def traits(samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.float64]:
    """A voice's measures: log pitch (median and spread), then the mean MFCCs of the sounding frames without loudness.

    Returns:
        float64 [2 + COEFFICIENTS].
    """
    wave = librosa.resample(samples, orig_sr=sample_rate, target_sr=RATE)
    power = librosa.feature.rms(y=wave, frame_length=1024, hop_length=256)[0]
    loud = power > 0.1 * max(1e-4, float(np.quantile(power, 0.95)))
    pitch = np.log(librosa.yin(wave, fmin=_LOWEST, fmax=_HIGHEST, sr=RATE, frame_length=1024, hop_length=256))
    cepstrum = librosa.feature.mfcc(y=wave, sr=RATE, n_mfcc=COEFFICIENTS + 1, n_fft=1024, hop_length=256)[1:]
    size = min(len(loud), len(pitch), cepstrum.shape[1])
    heard = loud[:size] if loud[:size].any() else np.ones(size, bool)
    voiced = pitch[:size][heard]
    spread = np.subtract(*np.quantile(voiced, [0.8, 0.2]))
    return np.concatenate([[np.median(voiced), spread], cepstrum[:, :size][:, heard].mean(axis=1)])


class Identifier:
    """Finds the speaker of a clip among those it knows.

    Args:
        clips: of each speaker, several clips' `traits`.
    """

    def __init__(self, clips: Mapping[int, Sequence[NDArray[np.float64]]]) -> None:
        self._centres = {speaker: np.mean(rows, axis=0) for speaker, rows in clips.items()}
        within = [row - self._centres[speaker] for speaker, rows in clips.items() for row in rows]
        self._scale = np.std(within, axis=0) + 1e-6  # a measure that varies within a voice says little
        self._weights = np.ones(len(self._scale))
        self._weights[0] = _PITCH_WEIGHT

    def find(self, found: NDArray[np.float64]) -> int:
        """The speaker whose mean is nearest to a clip's `traits`."""
        distances = {
            speaker: float((self._weights * ((found - centre) / self._scale) ** 2).sum())
            for speaker, centre in self._centres.items()
        }
        return min(distances, key=lambda speaker: distances[speaker])
