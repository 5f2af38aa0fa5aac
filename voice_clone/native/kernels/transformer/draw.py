"""Codes of frames from logits as native code: what sampling.py and code_head.py do.

Codes are ordered by the distance of their logits below the largest logit. The bits of a distance, read as an integer,
have the order of the distances. So the limits of top-k and top-p are found by bisection over integers, without sorting.
If several codes lie exactly at the limit of top-p, all of them are kept.
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import numpy as np
from numba import float32, float64, int32, int64

from voice_clone.native.kernels.arithmetic import LOWEST, exponential, float_bits, total, total_from
from voice_clone.native.kernels.compilation import compiled

_INFINITY_BITS = np.int32(0x7F800000)  # those of all finite numbers are below


@compiled
def is_finite(row):
    """Whether all numbers of a float32 [V] are finite."""
    largest = int32(0)
    for i in range(row.shape[0]):
        largest = max(largest, int32(float_bits(row[i]) & int32(0x7FFFFFFF)))
    return largest < _INFINITY_BITS


@compiled
def _count_within(distances, limit):
    """How many codes have a distance up to a limit; both are bits."""
    count = 0
    for i in range(distances.shape[0]):
        count += distances[i] <= limit
    return count


@compiled
def _exponentiate(distances, limit, weights):
    """Replace distances, float32 in `weights`, by unnormalised probabilities; 0 beyond the limit."""
    for i in range(distances.shape[0]):
        weights[i] = exponential(-weights[i]) if distances[i] <= limit and weights[i] < -LOWEST else float32(0)


@compiled
def _most_likely(logits):
    """The most likely code, and its logit."""
    best, largest = int64(0), logits[0]
    for i in range(logits.shape[0]):
        if logits[i] > largest:
            best, largest = i, logits[i]
    return best, largest


@compiled
def _limit_of_k(distances, limit, k):
    """The smallest limit up to `limit` that k codes are within; `limit` itself if all codes are kept."""
    if not 0 < k < distances.shape[0]:
        return limit
    least = int32(-1)
    while limit - least > 1:
        middle = int32(least + (limit - least) // 2)
        if _count_within(distances, middle) < k:
            least = middle
        else:
            limit = middle
    return limit


@compiled
def _drawn(distances, limit, weights, uniform, best):
    """The code within a limit that a uniform number falls on, by unnormalised probabilities."""
    whole = float64(0)
    for i in range(weights.shape[0]):
        if distances[i] <= limit:
            whole += float64(weights[i])
    target, reached, last = uniform * whole, float64(0), best
    for i in range(weights.shape[0]):
        if distances[i] <= limit and weights[i] > 0:
            reached += float64(weights[i])
            last = i
            if reached > target:
                break
    return last


@compiled
def draw(logits, knobs, uniform, distances, weights):
    """The code drawn from a row of logits [V].

    Args:
        logits: float32; if some are not finite, the result is any code.
        knobs: float32 [4]: do_sample, temperature, top_k, top_p; see sampling.py.
        uniform: float64 in [0, 1).
        distances, weights: memory, int32 [V] and float32 [V].
    """
    best, largest = _most_likely(logits)
    if knobs[0] == 0:
        return best
    for i in range(logits.shape[0]):
        weights[i] = abs((logits[i] - largest) / knobs[1])
        distances[i] = float_bits(weights[i])
    limit = _limit_of_k(distances, _INFINITY_BITS, int64(knobs[2]))
    _exponentiate(distances, limit, weights)
    if knobs[3] < 1:  # find the largest limit such that codes from it on weigh more than the part that top-p drops
        rest = (float32(1) - knobs[3]) * total(weights)
        least, beyond = int32(0), int32(limit + 1)
        while beyond - least > 1:
            middle = int32(least + (beyond - least) // 2)
            if total_from(weights, distances, middle) > rest:
                least = middle
            else:
                beyond = middle
        limit = least
    return _drawn(distances, limit, weights, uniform, best)


@compiled
def draw_filter_first(logits, knobs, uniform, distances, weights, crossing):
    """As `draw`, by the rule of `FilterFirstSampler`; codes that are equally likely are kept or dropped together.

    crossing: bool, as there.
    """
    best, largest = _most_likely(logits)
    if knobs[0] == 0:
        return best
    for i in range(logits.shape[0]):
        weights[i] = abs(logits[i] - largest)
        distances[i] = float_bits(weights[i])
    limit = _limit_of_k(distances, _INFINITY_BITS, int64(knobs[2]))
    if knobs[3] < 1:  # find the largest limit such that codes beyond it, or from it on, weigh all that top-p drops
        _exponentiate(distances, _INFINITY_BITS, weights)
        rest = (float32(1) - knobs[3]) * total(weights)
        least, beyond = int32(0), int32(limit + 1)
        while beyond - least > 1:
            middle = int32(least + (beyond - least) // 2)
            if crossing:
                kept = total_from(weights, distances, middle) > rest
            else:
                kept = total_from(weights, distances, int32(middle + 1)) >= rest
            if kept:
                least = middle
            else:
                beyond = middle
        limit = least
    for i in range(logits.shape[0]):
        weights[i] = abs((logits[i] - largest) / knobs[1])
    _exponentiate(distances, limit, weights)
    return _drawn(distances, limit, weights, uniform, best)


@compiled
def first_codes(logits, used, penalty, suppressed, end, may_stop, knobs, uniform, distances, weights, codes, finite):
    """Codebook 0 of N frames from logits of V codes: repetition penalty, suppressed codes, and the draw.

    Args:
        logits: float32 [N, V]; overwritten.
        used: bool [N, V], the codes to which the repetition penalty applies.
        penalty: float32 [N].
        suppressed: bool [V], the codes that are never drawn.
        end: the code that ends speech.
        may_stop: bool [N], whether `end` may be drawn.
        knobs, uniform: float32 [N, 4] and float64 [N]; see `draw`.
        distances, weights: memory for one row; see `draw`.
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
def _among(code, recent, first_frame):
    """Whether a code is among the latest ones [R]; without `first_frame`, all but the first of them and of a stream."""
    found = False
    for i in range(0 if first_frame else 1, recent.shape[0]):
        found |= recent[i] == code and (first_frame or recent[i - 1] >= 0)
    return found


@compiled
def repetition_aware_codes(logits, recent, rule, end, may_stop, knobs, uniform, distances, weights, codes, finite):
    """Codebook 0 of N frames from logits of V codes by repetition-aware sampling; see `RepetitionAwareFirstCode`.

    Args:
        logits: float32 [N, V]; overwritten.
        recent: int64 [N, R], the latest codes, the newest last; -1 where there was none.
        rule: `first_frame` and `exclude` of the rule, and `crossing` of its sampler.
        end: it and the codes behind it end speech.
        may_stop: bool [N], whether they may be drawn.
        distances, weights, codes, finite: as of `first_codes`.
        knobs, uniform: of the first and of the second draw, float32 [N, 4] and float64 [N] each.
    """
    first_frame, exclude, crossing = rule
    for n in range(logits.shape[0]):
        row = logits[n]
        finite[n] = is_finite(row)
        if not may_stop[n]:
            row[end:] = float32(-np.inf)
        code = draw_filter_first(row, knobs[0][n], uniform[0][n], distances, weights, crossing)
        if knobs[0][n, 0] != 0 and _among(code, recent[n], first_frame):
            if exclude:
                row[code] = float32(-np.inf)
            code = draw_filter_first(row, knobs[1][n], uniform[1][n], distances, weights, crossing)
        codes[n] = min(code, end)
