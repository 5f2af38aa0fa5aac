"""Perth's networks (resemble-perth 1.0.1, MIT): one proposes gains that mark a sound, one hears whether it is marked.

Both are stacks of convolutions over the frames of `spectrum.levels`. The second one hears a sound at three tempi and
weighs what it finds. It leaves out frames of digital silence.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from voice_clone.marking.spectrum import SPAN

_DEPTH = 7  # convolutions of a stack
_TEMPI = (("slow", 1.25), ("normal", 1.0), ("fast", 0.75))  # how many frames become of one
_SILENT = 0.05  # of the loudest frame's sum of levels

Stack = list[tuple[Tensor, Tensor]]


class PerthNetwork:
    """Both networks.

    Args:
        weights: of `load_weights`.
        device: where they compute.
    """

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
