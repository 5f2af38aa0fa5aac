"""ALiBi (Press et al. 2022): attention whose scores fall with the distance of the positions, in place of a position
embedding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def alibi_slopes(heads: int) -> NDArray[np.float32]:
    """How fast the scores of each head fall with distance: fp32 [H].

    Head i of H has 2 ** (-8 i / H): the first one has 1, where the paper begins with the second number. If H is no
    power of two, the heads beyond the largest power of two take every other number of the sequence of twice as many
    heads.
    """
    power = 1 << (heads.bit_length() - 1)
    exponents = [-8.0 * place / power for place in range(power)]
    exponents += [-8.0 * place / (2 * power) for place in range(0, 2 * (heads - power), 2)]
    return np.array([2.0**exponent for exponent in exponents], np.float32)
