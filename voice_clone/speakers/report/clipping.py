"""How much of a clip is cut off at the top, because it was recorded too loud."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_TOP = 0.99  # of the highest sample: the level at which clipped samples pile up
_BELOW = 0.95  # the range down to here shows how many samples a wave has so near its top if it is not clipped
_PILE = 5.0  # times as many a unit of level; a pure tone has three times as many
_FULL = 0.999  # full scale


def clipped_share(waveform: NDArray[np.float32]) -> float:
    """The share of samples that are clipped, 0 to 1: at full scale, or piled up at the clip's own limit.

    A clip that was recorded too loud and made softer afterwards still has flat tops. The louder a sample of speech,
    the rarer it is; samples that pile up at the highest level were cut off there. Above and below zero are judged
    apart, because a microphone may limit them differently.
    """
    at_full_scale = float(np.mean(np.abs(waveform) >= _FULL))
    return max(at_full_scale, sum(_piled_up(side) for side in (waveform, -waveform)))


def _piled_up(side: NDArray[np.float32]) -> float:
    peak = float(side.max(initial=0.0))
    if peak <= 0.0:
        return 0.0
    top = int(np.count_nonzero(side >= _TOP * peak))
    below = int(np.count_nonzero(side >= _BELOW * peak)) - top
    usual = below * (1 - _TOP) / (_TOP - _BELOW)  # in the top if the levels there were as common as those below it
    return top / len(side) if top > _PILE * usual + 1 else 0.0
