"""Random weights under which signals neither vanish nor explode, by a table of the family: the kinds of its tensors.

The recipe of all tables: a layer's output has about the power of its input, a residual branch adds a fraction, and the
waveform stays far from its limits. Default initialisation would give near silence, on which any two programs agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from tools.families.weight_files import noise_of

Sizes = tuple[int, ...]
Fill = Callable[[Tensor, float], Tensor]
"""Normal noise of a tensor's shape, and the gain of its name -> its values."""
FanIn = Callable[[str, Sizes], float]
"""How many inputs meet in an output of a layer."""


def around(mean: float, spread: float) -> Fill:
    """Norms, scales and means."""
    return lambda noise, _: mean + spread * noise


def spread(size: float = 1.0) -> Fill:
    """Tables, biases and codebooks."""
    return lambda noise, _: size * noise


def length(noise: Tensor, gain: float) -> Tensor:
    """That of a weight-normed weight, whose direction is any."""
    return gain * (1 + 0.05 * noise)


def all_inputs(name: str, sizes: Sizes) -> float:
    """Of a linear layer and of a convolution."""
    return math.prod(sizes[1:])


VECTOR = ""
"""The pattern of whatever has one dimension."""


@dataclass(frozen=True)
class Gains:
    """The table of a family's tensors.

    Attributes:
        kinds: patterns of names, and how such tensors are filled; the first that is found counts. Others are layers.
        gains: patterns of names, and the gains of layers and lengths; the first that is found counts, else 1.
        fan_in: of a layer.
        prefix: of the names, where two networks of a family have the same.
    """

    kinds: Sequence[tuple[str, Fill]]
    gains: Sequence[tuple[str, float]] = ()
    fan_in: FanIn = all_inputs
    prefix: str = ""

    def __call__(self, name: str, sizes: Sizes, seed: int) -> Tensor:
        """A tensor, float32; its values depend on the arguments alone."""
        return self.fill(name, noise_of(self.prefix + name, sizes, seed))

    def fill(self, name: str, noise: Tensor) -> Tensor:
        """The same of noise that is given."""
        gain = next((gain for pattern, gain in self.gains if re.search(pattern, name)), 1.0)
        for pattern, fill in self.kinds:
            if noise.ndim == 1 if pattern == VECTOR else re.search(pattern, name):
                return fill(noise, gain)
        return noise * (gain / math.sqrt(self.fan_in(name, tuple(noise.shape))))
