"""How attention knows positions: by rotary embedding, or by scores that fall with the distance (ALiBi).

Rotary position embedding (Su et al. 2021): dimensions i and i + D/2 turn together, by an angle for each position. The
steps are those of the official code in fp32. Each is rounded once, so that the numbers are the same on all processors,
in torch and in native code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def rotary_frequencies(head_dim: int, theta: float) -> Floats:
    """The angle by which each pair of dimensions turns per position, fp32 [D/2]: theta ** (-2i / D)."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers: Floats = np.power(theta, exponents, dtype=np.float64).astype(np.float32)
    return np.float32(1) / powers


def rotary_tables(
    positions: int, head_dim: int, theta: float, factors: Sequence[float] | None = None
) -> tuple[Floats, Floats]:
    """cos and sin of all positions, fp32 [positions, D/2] each.

    Args:
        factors: by which the positions of each pair of dimensions are divided [D/2] (LongRoPE, Ding et al. 2024).
    """
    places: NDArray[Any] = np.arange(positions, dtype=np.float32)[:, None]
    if factors is not None:
        places = places * (np.float32(1) / np.array(factors, np.float32))  # in this order, as the official code has it
    angles = (places * rotary_frequencies(head_dim, theta)).astype(np.float64)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def alibi_slopes(heads: int) -> NDArray[np.float32]:
    """How fast the scores of each head fall with distance, fp32 [H]: ALiBi (Press et al. 2022).

    Head i of H has 2 ** (-8 i / H): the first one has 1, where the paper begins with the second number. If H is no
    power of two, the heads beyond the largest power of two take every other number of the sequence of twice as many
    heads.
    """
    power = 1 << (heads.bit_length() - 1)
    exponents = [-8.0 * place / power for place in range(power)]
    exponents += [-8.0 * place / (2 * power) for place in range(0, 2 * (heads - power), 2)]
    return np.array([2.0**exponent for exponent in exponents], np.float32)
