"""Sound as Perth's networks see it: levels of 128 bands up to 2 kHz, a hundred times a second.

The networks were trained on sound at 32 kHz, in windows of 64 ms. The same bands of the same windows are found at
16 kHz, where a window has half the samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

RATE = 16_000  # Hz, of the sound that is looked at
WINDOW, HOP = 1024, 160  # samples: 64 ms and 10 ms
BANDS, BAND = 128, RATE / WINDOW  # their number, and Hz from one to the next
SPAN = 195.0  # decibels from the level 0 to the level 1
_FLOOR = 180.0  # decibels below a magnitude of 1
_SCALE = 2.0  # a window at 32 kHz sums twice as many samples


def levels(waveform: Tensor) -> Tensor:
    """float32 [samples > WINDOW / 2] at `RATE` -> [BANDS, frames], decibels in a scale where most sound is 0 to 1."""
    spectrum = torch.stft(
        waveform, WINDOW, HOP, window=torch.hann_window(WINDOW, device=waveform.device), return_complex=True
    )
    magnitude = _SCALE * spectrum[:BANDS].abs()
    return (20 * magnitude.clip(10 ** (-_FLOOR / 20)).log10() + _FLOOR) / SPAN
