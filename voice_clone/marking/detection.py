"""Finds the mark in a sound, whether this server or Perth itself put it there.

A sound that is played faster or slower has the pattern of the mark at other frequencies, where the network does not
find it. So the likeliest speeds are found by correlating the mean spectrum with the pattern, and the network gets the
sound at its original speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from tempfile import SpooledTemporaryFile

import numpy as np
import torch
from numpy.typing import NDArray

from voice_clone.audio import resample
from voice_clone.errors import InvalidArgument
from voice_clone.marking.detectors import SHORTEST, Detection, likeliest
from voice_clone.marking.mark_filter import pattern
from voice_clone.marking.network import BANDS, HOP, RATE, WINDOW, PerthNetwork, levels
from voice_clone.marking.weights import load_weights

MARK = "perth"
THRESHOLD = 0.3  # of the confidence, from which a sound counts as marked
SURE = 0.9  # the same at a guessed speed: guesses are those at which a sound is most like a marked one
ENOUGH = 2.0  # seconds of a sound whose speed can be guessed
PIECE = 30.0  # seconds that are looked at together
SPEEDS = tuple(round(0.92 + 0.002 * step, 3) for step in range(81))  # at which the pattern is looked for
GUESSES = 3  # of the speeds at most, that the network hears
LIKENESS = 0.06  # from which a speed is worth a guess; 0 by chance, 0.2 where the mark is
_FINER = 8  # points of the mean spectrum a band
_AROUND = 3  # bands on both sides, whose mean is taken off
_LOUD = 40.0  # decibels below the loudest frame, from which on a frame counts in the mean spectrum


class PerthDetector:
    """Finds Perth's mark.

    Raises:
        Unsupported: the package with the weights is missing.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._network = PerthNetwork(load_weights(), device)
        self._pattern = _without_mean(pattern(self._network)[None])[0]

    def detect(self, waveform: NDArray[np.float32], rate: int) -> Detection:
        """Look for the mark.

        Args:
            waveform: float32 [samples], mono.
            rate: Hz.

        Raises:
            InvalidArgument: it is shorter than `SHORTEST`.
        """
        return likeliest(self.pieces(waveform, rate))

    def pieces(self, waveform: NDArray[np.float32], rate: int) -> Iterator[Detection]:
        """See `Detector.pieces`. A long sound waits on the disk meanwhile. Raises: as `detect`."""
        if len(waveform) < SHORTEST * rate:
            raise InvalidArgument(
                f"the `audio` is {len(waveform) / rate:.2f} s long; it must have {SHORTEST} s or more"
            )
        sound = resample(waveform, rate, RATE)
        pieces = max(1, round(len(sound) / (PIECE * RATE)))
        borders = np.linspace(0, len(sound), pieces + 1).astype(int).tolist()
        with SpooledTemporaryFile(max_size=round(2 * PIECE * RATE * sound.itemsize)) as file:
            file.write(sound.tobytes())
            file.seek(0)
            del waveform, sound
            for a, b in pairwise(borders):
                yield self._detect(np.frombuffer(bytearray(file.read(4 * (b - a))), np.float32), a / RATE)

    def _detect(self, sound: NDArray[np.float32], start: float) -> Detection:
        confidence, speed = self._confidence(sound), 1.0
        if confidence < THRESHOLD and len(sound) >= ENOUGH * RATE:
            for guess in self._likely_speeds(sound):
                if (other := self._confidence(resample(sound, RATE, round(RATE * guess)))) > max(confidence, SURE):
                    confidence, speed = other, guess
        mark = MARK if confidence >= THRESHOLD else None
        return Detection(mark, round(confidence, 4), speed, start, len(sound) / RATE)

    def _confidence(self, sound: NDArray[np.float32]) -> float:
        score = self._network.score(levels(torch.from_numpy(sound).to(self._network.device)))
        return min(1.0, max(0.0, score))

    def _likely_speeds(self, sound: NDArray[np.float32]) -> list[float]:
        """The speeds at which the mean spectrum is like the pattern, the likeliest first."""
        frames = np.lib.stride_tricks.sliding_window_view(sound, WINDOW)[::HOP] * np.hanning(WINDOW + 1)[:-1]
        magnitude = np.abs(np.fft.rfft(frames, _FINER * WINDOW))[:, : round(_FINER * BANDS * SPEEDS[-1]) + 1]
        decibels = 20 * np.log10(np.maximum(magnitude, 1e-9))
        loudness = decibels.mean(1)
        spectrum = decibels[loudness > loudness.max() - _LOUD].mean(0)
        places = np.arange(BANDS) * np.array(SPEEDS)[:, None] * _FINER
        bands = _without_mean(np.interp(places, np.arange(len(spectrum)), spectrum))
        likeness = bands @ self._pattern / (np.linalg.norm(bands, axis=1) + 1e-9)  # silence is like nothing
        guesses: list[float] = []
        for place in np.argsort(-likeness)[: np.count_nonzero(likeness > LIKENESS)]:
            speed = SPEEDS[place]
            if all(abs(speed - other) > 0.005 for other in guesses):
                guesses.append(speed)
            if len(guesses) == GUESSES:
                break
        return guesses


def _without_mean(bands: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, BANDS], each band without the mean of those around it."""
    padded = np.pad(bands, ((0, 0), (_AROUND, _AROUND)), mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * _AROUND + 1, axis=1).mean(-1)
    found: NDArray[np.float64] = bands - around
    return found
