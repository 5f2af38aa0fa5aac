"""Codebook 0 of frames from its logits as native code: repetition penalty, suppressed codes, and the draw."""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import numpy as np
from numba import float32

from voice_clone.native.compilation import compiled
from voice_clone.native.transformer.draw import draw, is_finite


@compiled
def first_codes(logits, used, penalty, suppressed, end, may_stop, knobs, uniform, distances, weights, codes, finite):
    """N rows, V codes.

    Args:
        logits: float32 [N, V]; overwritten.
        used: bool [N, V], the codes to which the repetition penalty applies.
        penalty: float32 [N].
        suppressed: bool [V], the codes that are never drawn.
        end: the code that ends speech.
        may_stop: bool [N], whether `end` may be drawn.
        knobs, uniform: float32 [N, 4] and float64 [N]; see draw.py.
        distances, weights: memory for one row; see draw.py.
        codes: int64 [N], to be filled.
        finite: bool [N], to be filled: whether all logits of a row were finite.
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
        codes[n] = draw(row, knobs[n], uniform[n], distances, weights)
