"""Arithmetic whose every rounding is fixed: sums, a * b + c, the exponential function; a norm and attention from them.

With fast arithmetic the compiler chooses the order of a sum, and it chooses differently in each copy that it makes of
a loop: one for vectors, one for the rest, one for arrays that might overlap. The copy that runs depends on the arrays'
addresses, and so would the last bits of a sum. Therefore this package is compiled without fast arithmetic. Sums that
need vectors are written with vectors, and the order of their additions is fixed.
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

import math

import numpy as np
from llvmlite import ir
from numba import float32, int32, types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable
from numba.np.arrayobj import populate_array

from voice_clone.native.kernels import vectors
from voice_clone.native.kernels.compilation import compiled
from voice_clone.native.kernels.vectors import FLOAT, FLOATS, INT32, INTS, index
from voice_clone.native.sizes import WIDTH

ACCUMULATORS = 4  # vectors that a sum uses side by side, since an addition to one of them waits for the one before


@intrinsic
def float_bits(context, value):
    """The bits of a float32, as int32."""

    def code(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], INT32)

    return int32(float32), code


@intrinsic
def float_from_bits(context, bits):
    """The float32 that has these bits, int32."""

    def code(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], FLOAT)

    return float32(int32), code


@intrinsic
def matrix(context, flat, rows, columns):
    """[rows * columns] as [rows, columns]. numba's `reshape` would call its runtime, which is not there."""
    kind = flat.copy(ndim=2)

    def code(context, builder, signature, arguments):
        flat, rows, columns = arguments
        flat = context.make_array(signature.args[0])(context, builder, flat)
        found = context.make_array(kind)(context, builder)
        strides = builder.mul(columns, flat.itemsize), flat.itemsize
        populate_array(found, flat.data, (rows, columns), strides, flat.itemsize, meminfo=None)
        return found._getvalue()

    return kind(flat, types.int64, types.int64), code


@intrinsic
def fma(context, a, b, c):
    """a * b + c, rounded once; float32."""

    def code(context, builder, signature, arguments):
        return vectors.fma(builder, *arguments)

    return float32(float32, float32, float32), code


@intrinsic
def dot(context, a, b):
    """The sum of the products of float32 [N] and [N]."""

    def code(context, builder, signature, arguments):
        (a, size), (b, _) = (_array(context, builder, signature, arguments, place) for place in range(2))

        def add(total, at, kind):
            values = (vectors.load(builder, each, at, kind) for each in (a, b))
            return vectors.multiply_add(builder, *values, total)

        return _sum_in_fixed_order(builder, size, add)

    return float32(a, b), code


@intrinsic
def total(context, a):
    """The sum of float32 [N]."""

    def code(context, builder, signature, arguments):
        a, size = _array(context, builder, signature, arguments, 0)

        def add(total, at, kind):
            return builder.fadd(total, vectors.load(builder, a, at, kind))

        return _sum_in_fixed_order(builder, size, add)

    return float32(a), code


@intrinsic
def total_from(context, a, keys, limit):
    """The sum of those of float32 [N] whose keys, int32 [N], are not below an int32 limit."""

    def code(context, builder, signature, arguments):
        (a, size), (keys, _) = (_array(context, builder, signature, arguments, place) for place in range(2))
        limit = arguments[2]
        limits = vectors.broadcast(builder, limit)

        def add(total, at, kind):
            wide = kind == FLOATS
            key = vectors.load(builder, keys, at, INTS if wide else INT32)
            counts = builder.icmp_signed(">=", key, limits if wide else limit)
            value = builder.select(counts, vectors.load(builder, a, at, kind), ir.Constant(kind, None))
            return builder.fadd(total, value)

        return _sum_in_fixed_order(builder, size, add)

    return float32(a, keys, types.int32), code


def _array(context, builder, signature, arguments, place):
    """The pointer and the length of an argument that is an array [N]."""
    array = context.make_array(signature.args[place])(context, builder, arguments[place])
    return array.data, cgutils.unpack_tuple(builder, array.shape)[0]


def _sum_in_fixed_order(builder, size, add):
    """A sum over `size` numbers: first in `ACCUMULATORS` vectors, then in one vector, then number by number.

    add: (total, at, kind) -> `total` plus the next numbers, which begin at `at`. `kind` is the type of the total: a
    vector of float32 or a float32.
    """
    totals = [vectors.variable(builder, ir.Constant(FLOATS, None)) for _ in range(ACCUMULATORS)]
    blocks = builder.sdiv(size, index(ACCUMULATORS * WIDTH))
    with cgutils.for_range(builder, blocks) as loop:
        start = builder.mul(loop.index, index(ACCUMULATORS * WIDTH))
        for v, each in enumerate(totals):
            builder.store(add(builder.load(each), builder.add(start, index(v * WIDTH)), FLOATS), each)
    done = builder.mul(blocks, index(ACCUMULATORS * WIDTH))
    remaining = builder.sdiv(builder.sub(size, done), index(WIDTH))
    with cgutils.for_range(builder, remaining) as loop:
        at = builder.add(done, builder.mul(loop.index, index(WIDTH)))
        builder.store(add(builder.load(totals[0]), at, FLOATS), totals[0])
    done = builder.add(done, builder.mul(remaining, index(WIDTH)))
    a, b, c, d = (builder.load(each) for each in totals)
    result = vectors.variable(builder, vectors.sum_lanes(builder, builder.fadd(builder.fadd(a, b), builder.fadd(c, d))))
    with cgutils.for_range(builder, builder.sub(size, done)) as loop:
        builder.store(add(builder.load(result), builder.add(done, loop.index), FLOAT), result)
    return builder.load(result)


@intrinsic
def weighted_sum(context, weights, rows, count, out):
    """out [N] = the sum of the first `count` rows [S, N] by their weights [S], one row after the other; float32."""

    def code(context, builder, signature, arguments):
        weights, _ = _array(context, builder, signature, arguments, 0)
        rows, _ = _array(context, builder, signature, arguments, 1)
        out, size = _array(context, builder, signature, arguments, 3)

        def columns(first, kind, vectors_):
            """Some neighbouring vectors of the result."""
            places = [builder.add(first, index(v * WIDTH)) for v in range(vectors_)]
            totals = [vectors.variable(builder, ir.Constant(kind, None)) for _ in places]
            with cgutils.for_range(builder, arguments[2]) as loop:
                weight = builder.load(builder.gep(weights, [loop.index]))
                if kind == FLOATS:
                    weight = vectors.broadcast(builder, weight)
                row = builder.mul(loop.index, size)
                for place, each in zip(places, totals, strict=True):
                    value = vectors.load(builder, rows, builder.add(row, place), kind)
                    builder.store(vectors.fma(builder, weight, value, builder.load(each)), each)
            for place, each in zip(places, totals, strict=True):
                vectors.store(builder, out, place, builder.load(each))

        done = index(0)
        for kind, vectors_, width in ((FLOATS, 8, 8 * WIDTH), (FLOATS, 1, WIDTH), (FLOAT, 1, 1)):
            blocks = builder.sdiv(builder.sub(size, done), index(width))
            with cgutils.for_range(builder, blocks) as loop:
                columns(builder.add(done, builder.mul(loop.index, index(width))), kind, vectors_)
            done = builder.add(done, builder.mul(blocks, index(width)))
        return context.get_dummy_value()

    return types.none(weights, rows, types.int64, out), code


# exp(x) = 2 ** n * exp(r), where r lies within log(2) / 2 of zero and exp(r) is a short series. The compiler can
# vectorise this form, unlike a call of the C library's `expf`. W. J. Cody and W. Waite, Software Manual for the
# Elementary Functions, 1980.
LOWEST, HIGHEST = np.float32(-87.3), np.float32(88.3)  # between them a result is neither 0 nor infinity
_PER_LOG_2 = np.float32(1 / math.log(2))
_LOG_2 = np.float32(0.693359375)  # it has few bits, so its multiples are exact
_LOG_2_REST = np.float32(math.log(2) - 0.693359375)
_SERIES = tuple(np.float32(1 / math.factorial(n)) for n in range(7, 1, -1))


@register_jitable
def _parts_of_exponential(x):
    """n, r and s of an x between the limits: exp(x) = 2 ** n * (1 + r + s * r ** 2)."""
    n = np.floor(fma(x, _PER_LOG_2, float32(0.5)))
    r = fma(n, -_LOG_2_REST, fma(n, -_LOG_2, x))
    series = _SERIES[0]
    for coefficient in _SERIES[1:]:
        series = fma(series, r, coefficient)
    return n, r, series


@register_jitable
def _power_of_2(n):
    """2 ** n of a whole float32 between -127 and 128."""
    return float_from_bits(int32(int32(n) + 127) << 23)


@register_jitable
def exponential(x):
    """exp(x) of a float32, relative error below 3e-7.

    Below `LOWEST` and above `HIGHEST` the result is that at the limit. NaN and both infinities give NaN.
    """
    n, r, series = _parts_of_exponential(min(max(x, LOWEST), HIGHEST))
    return fma(series, r * r, r + float32(1)) * _power_of_2(n) + (x - x)


@register_jitable
def elu(x):
    """x, or exp(x) - 1 below zero, of a float32 (Clevert et al. 2016), relative error below 3e-7.

    exp(x) - 1 = 2 ** n * (exp(r) - 1) + (2 ** n - 1), so nothing cancels near zero, where n is 0. NaN and both
    infinities give NaN.
    """
    n, r, series = _parts_of_exponential(min(max(x, LOWEST), float32(0)))
    power = _power_of_2(n)
    return max(x, float32(0)) + fma(power, fma(series, r * r, r), power - float32(1)) + (x - x)


@register_jitable
def silu(x):
    """x * sigmoid(x) of a float32."""
    return x / (float32(1) + exponential(-x))


@register_jitable
def gelu_tanh(x):
    """GELU of a float32 in its form by the hyperbolic tangent (Hendrycks and Gimpel 2016): x * sigmoid(2 * u)."""
    return x / (float32(1) + exponential(float32(-2 * math.sqrt(2 / math.pi)) * (x + float32(0.044715) * (x * x * x))))


@compiled
def norm(x, weight, bias, eps, out):
    """A norm of float32 rows x [N, C] -> out [N, C]: a layer norm, or a root-mean-square norm if the bias is [0]."""
    if bias.shape[0] == 0:
        rms_norm(x, weight, eps, out)
        return
    size = x.shape[1]
    for n in range(x.shape[0]):
        mean = total(x[n]) / float32(size)
        for i in range(size):
            out[n, i] = x[n, i] - mean
        factor = float32(1) / math.sqrt(dot(out[n], out[n]) / float32(size) + eps)
        for i in range(size):
            out[n, i] = weight[i] * (out[n, i] * factor) + bias[i]


@compiled
def rms_norm(x, weight, eps, out):
    """Root-mean-square norm (Zhang and Sennrich 2019) of float32 rows x [N, C], weight [C] -> out [N, C]."""
    size = x.shape[1]
    for n in range(x.shape[0]):
        factor = float32(1) / math.sqrt(dot(x[n], x[n]) / float32(size) + eps)
        for i in range(size):
            out[n, i] = weight[i] * (x[n, i] * factor)


@compiled
def rotate(head, cos, sin):
    """Rotary embedding (Su et al. 2021) of one head [D], in place: dimensions i and i + D / 2 rotate together.

    cos, sin: [D / 2].
    """
    half = head.shape[0] // 2
    for i in range(half):
        a, b = head[i], head[half + i]
        head[i] = a * cos[i] - b * sin[i]
        head[half + i] = b * cos[i] + a * sin[i]


@compiled
def attend(query, keys, values, length, scores, out):
    """Scaled-dot-product attention of one query [D] to the first `length` of the keys and values [S, D] -> out [D].

    All arrays are float32. `scores` is memory for `length` numbers.
    """
    scaled_products(query, keys, length, scores)
    weigh(scores, values, length, out)


@compiled
def scaled_products(query, keys, length, scores):
    """The scores of a query [D], before softmax, with the first `length` of the keys [S, D]."""
    scale = float32(1) / math.sqrt(float32(query.shape[0]))
    for s in range(length):
        scores[s] = dot(query, keys[s]) * scale


@compiled
def weigh(scores, values, length, out):
    """The sum of the first `length` of the values [S, D], weighted by softmax of the scores -> out [D].

    The scores are overwritten.
    """
    largest = float32(-np.inf)
    for s in range(length):
        largest = max(largest, scores[s])
    for s in range(length):
        scores[s] = exponential(scores[s] - largest)
    weighted_sum(scores, values, length, out)
    part = float32(1) / total(scores[:length])
    for i in range(out.shape[0]):
        out[i] *= part
