"""Perth's networks (resemble-perth 1.0.1, MIT): one proposes gains that mark a sound, one hears whether it is marked.

Both are stacks of convolutions over the frames of `levels`: of 128 bands up to 2 kHz, a hundred times a second. They
were trained on sound at 32 kHz, in windows of 64 ms. The same bands of the same windows are found at 16 kHz, where a
window has half the samples. The second network hears a sound at three tempi and weighs what it finds. It leaves out
frames of digital silence.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

RATE = 16_000  # Hz, of the sound that is looked at
WINDOW, HOP = 1024, 160  # samples: 64 ms and 10 ms
BANDS, BAND = 128, RATE / WINDOW  # their number, and Hz from one to the next
SPAN = 195.0  # decibels from the level 0 to the level 1
_FLOOR = 180.0  # decibels below a magnitude of 1
_SCALE = 2.0  # a window at 32 kHz sums twice as many samples
_DEPTH = 7  # convolutions of a stack
_TEMPI = (("slow", 1.25), ("normal", 1.0), ("fast", 0.75))  # how many frames become of one
_SILENT = 0.05  # of the loudest frame's sum of levels

Stack = list[tuple[Tensor, Tensor]]


def levels(waveform: Tensor) -> Tensor:
    """float32 [samples > WINDOW / 2] at `RATE` -> [BANDS, frames], decibels in a scale where most sound is 0 to 1."""
    spectrum = torch.stft(
        waveform, WINDOW, HOP, window=torch.hann_window(WINDOW, device=waveform.device), return_complex=True
    )
    magnitude = _SCALE * spectrum[:BANDS].abs()
    return (20 * magnitude.clip(10 ** (-_FLOOR / 20)).log10() + _FLOOR) / SPAN


class PerthNetwork:
    """Both networks."""

    def __init__(self, weights: Mapping[str, Tensor], device: str = "cpu") -> None:
        self.device = torch.device(device)
        self._marking = self._stack(weights, "encoder.layers")
        self._hearing = [(self._stack(weights, f"decoder.{name}_layers"), tempo) for name, tempo in _TEMPI]

    @torch.inference_mode()
    def gains(self, levels: Tensor) -> Tensor:
        """[BANDS, frames] -> decibels [BANDS, frames] by which the bands of a marked sound are louder or softer."""
        return SPAN * _run(self._marking, levels[None])[0]

    @torch.inference_mode()
    def score(self, levels: Tensor) -> float:
        """[BANDS, frames] -> about 1 where the sound is marked, about 0 where it is not; 0 of digital silence."""
        sums = levels.sum(0)
        heard = (sums > _SILENT * sums.max()).float()[None, None]
        if not heard.any():
            return 0.0
        found = []
        for stack, tempo in self._hearing:
            frames = int(levels.shape[1] * tempo)
            played = functional.interpolate(levels[None], size=frames, mode="linear", align_corners=True)
            mask = functional.interpolate(heard, size=frames, mode="nearest")
            found.append((_run(stack, played) * mask).sum(2)[0] / mask.sum())  # [weight, mark]
        weight, mark = torch.stack(found, 1)
        return float((weight.softmax(0) * mark).sum())

    def _stack(self, weights: Mapping[str, Tensor], prefix: str) -> Stack:
        layers = (f"{prefix}.{place}.conv" for place in range(_DEPTH))
        return [(weights[f"{each}.weight"].to(self.device), weights[f"{each}.bias"].to(self.device)) for each in layers]


def _run(stack: Stack, x: Tensor) -> Tensor:
    for place, (weight, bias) in enumerate(stack):
        x = functional.conv1d(x, weight, bias, padding=weight.shape[2] // 2)
        if place < len(stack) - 1:
            x = functional.leaky_relu(x)
    return x
