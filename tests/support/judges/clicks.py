"""Clicks where the chunks of a stream meet: corners of the wave that are sharper there than elsewhere around."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_AROUND = 480  # samples on either side with which a border is compared
_AT = 2  # samples on either side that belong to a border


def sharpest_border(samples: NDArray[np.float32], borders: Sequence[int]) -> float:
    """How much sharper the worst border is than the sharpest corner around it; up to 1: no click. 0: no border.

    Args:
        samples: of a whole speech.
        borders: places of the first samples of all chunks but the first.
    """
    corners = np.abs(np.diff(samples.astype(np.float64), n=2, prepend=0.0, append=0.0))  # of each sample, in its middle
    worst = 0.0
    for border in borders:
        first = max(0, border - _AROUND)
        around = corners[first : border + _AROUND].copy()
        at = slice(border - first - _AT, border - first + _AT)
        here = around[at].max(initial=0.0)
        around[at] = 0.0
        worst = max(worst, float(here / max(1e-4, around.max(initial=0.0))))
    return worst
