"""Codebook 0 of frames from its logits, as native code: penalty, what must not come, and the draw."""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

import numpy as np
from numba import float32, njit

from voice_clone.native.transformer.draw import draw, is_finite
from voice_clone.native.transformer.kernels import _OPTIONS


@njit(**_OPTIONS)
def first_codes(logits, used, penalty, suppressed, end, may_stop, knobs, uniform, below, weights, codes, finite):
    """N rows, V codes.

    Args:
        logits: float32 [N, V]; lost.
        used: bool [N, V], the codes that the repetition penalty applies to; penalty: float32 [N].
        suppressed: bool [V], the codes that never come.
        end: the code of the end of speech; may_stop: bool [N], whether it may come.
        knobs, uniform, below, weights: of each row, and memory: see draw.py.
        codes: int64 [N], to be filled.
        finite: bool [N], to be filled: whether all logits were.
    """
    for n in range(logits.shape[0]):
        row = logits[n]
        for i in range(row.shape[0]):
            if used[n, i]:
                row[i] = row[i] * penalty[n] if row[i] < 0 else row[i] / penalty[n]
        finite[n] = is_finite(row)
        for i in range(row.shape[0]):
            if suppressed[i]:
                row[i] = float32(-np.inf)
        if not may_stop[n]:
            row[end] = float32(-np.inf)
        codes[n] = draw(row, knobs[n], uniform[n], below, weights)
