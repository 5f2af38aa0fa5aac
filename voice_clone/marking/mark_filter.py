"""Perth's mark as a filter without delay.

For any sound, Perth's network proposes the same gains in all frames, within a tenth of a decibel: a fixed pattern of
about 1.8 dB up or down in each of 128 bands below 2 kHz. The patterns for speech and noise, loud and soft, correlate by
0.998 and more. So the mark is an equaliser, and the pattern is all that it needs.

The filter with these gains has minimum phase. It delays nothing, so a stream is marked as it comes, and it rings after
a sound, not before it. Perth itself changes magnitudes in overlapping windows, by gains that depend on 150 ms before
and after a frame: with its windows it needs the following 214 ms of sound.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import InvalidArgument
from voice_clone.marking.network import BAND, BANDS, RATE, PerthNetwork, levels

SECONDS = 0.128  # of the filter; the gains of a longer one differ by less than 0.01 dB
MIN_RATE = 8_000  # Hz
_POINTS = 1 << 17  # of the transforms in which the filter is made
_EDGE = 20  # frames whose gains depend on the ends of the sound


def pattern(network: PerthNetwork) -> NDArray[np.float64]:
    """The gains of the mark, decibels [BANDS]: the mean of what the network proposes for some noise."""
    import torch._prims.rng_prims  # for torch.Generator in a model's process: see voice_clone/model_start.py

    noise = 0.05 * torch.randn(4 * RATE, generator=torch.Generator().manual_seed(0))
    gains = network.gains(levels(noise).to(network.device))
    found: NDArray[np.float64] = gains[:, _EDGE:-_EDGE].double().mean(1).cpu().numpy()
    return found


def minimum_phase(gains: NDArray[np.float64], rate: int) -> NDArray[np.float32]:
    """The filter at `rate` Hz with these gains, decibels [BANDS], and none above the bands: float32 [taps].

    The phase is the Hilbert transform of the logarithm of the magnitude, made in the cepstrum: Oppenheim and Schafer,
    Discrete-Time Signal Processing, "Relationships between magnitude and phase".

    Raises:
        InvalidArgument: the bands do not fit into this rate.
    """
    if rate < MIN_RATE:
        raise InvalidArgument(f"speech at {rate} Hz cannot be marked; it must have {MIN_RATE} Hz or more")
    place = np.arange(_POINTS // 2 + 1) * (rate / _POINTS / BAND)  # of each frequency among the bands
    below = np.minimum(place.astype(int), BANDS)
    padded = np.concatenate([gains, [0.0, 0.0]])
    slope = 0.5 - 0.5 * np.cos(np.pi * np.minimum(place - below, 1.0))
    decibels = padded[below] + (padded[below + 1] - padded[below]) * slope
    cepstrum = np.fft.irfft(decibels * (math.log(10) / 20), _POINTS)
    cepstrum[1 : _POINTS // 2] *= 2
    cepstrum[_POINTS // 2 + 1 :] = 0
    taps = np.fft.irfft(np.exp(np.fft.rfft(cepstrum)), _POINTS)[: round(SECONDS * rate)]
    fading = len(taps) // 4
    taps[-fading:] *= 0.5 + 0.5 * np.cos(np.pi * np.arange(fading) / fading)
    return taps.astype(np.float32)
