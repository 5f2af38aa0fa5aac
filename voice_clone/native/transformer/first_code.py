"""Codebook 0 of frames from its logits as native code: repetition penalty, suppressed codes, and the draw; or RAS."""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import numpy as np
from numba import float32

from voice_clone.native.compilation import compiled
from voice_clone.native.transformer.draw import draw, draw_unheated, is_finite


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


@compiled
def _among(code, recent):
    """Whether a code is among the latest ones [R], of which the first and a stream's own first do not count."""
    found = False
    for i in range(1, recent.shape[0]):
        found |= recent[i] == code and recent[i - 1] >= 0
    return found


@compiled
def repetition_aware_codes(logits, recent, end, may_stop, knobs, uniform, distances, weights, codes, finite):
    """N rows, V codes; see `RepetitionAwareFirstCode`.

    Args:
        logits: float32 [N, V]; overwritten.
        recent: int64 [N, R], the latest codes, the newest last; -1 where there was none.
        end, may_stop, distances, weights, codes, finite: as of `first_codes`.
        knobs, uniform: of the first and of the second draw, float32 [N, 4] and float64 [N] each.
    """
    for n in range(logits.shape[0]):
        row = logits[n]
        finite[n] = is_finite(row)
        if not may_stop[n]:
            row[end] = float32(-np.inf)
        code = draw_unheated(row, knobs[0][n], uniform[0][n], distances, weights)
        if knobs[0][n, 0] != 0 and _among(code, recent[n]):
            code = draw_unheated(row, knobs[1][n], uniform[1][n], distances, weights)
        codes[n] = code
