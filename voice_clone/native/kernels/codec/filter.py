"""A depthwise convolution as a layer of a chain: each channel of a row is filtered by itself, then maybe Snake.

All channels of a tap lie side by side, so a vector of channels is one sum of products of vectors. There is no matrix,
and the time is that of reading the rows.
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

from llvmlite import ir
from numba import int64, types
from numba.core import cgutils
from numba.extending import intrinsic

from voice_clone.native.codec.layer_table import ACTIVATION, BETWEEN_TAPS, PARAMETERS, SIZE, SNAKE, TAPS
from voice_clone.native.kernels import vectors
from voice_clone.native.kernels.codec.product import snake_of
from voice_clone.native.kernels.compilation import compiled
from voice_clone.native.kernels.vectors import FLOATS
from voice_clone.native.sizes import WIDTH


def _filter_channels(snake):
    """An intrinsic that filters WIDTH channels.

    (x, start, between_taps, taps, parameters, p, size, target, t): the inputs of tap k begin at start + k *
    between_taps. The weights of tap k begin at p + k * size; behind them all come the bias and, with `snake`, Snake's
    alpha and scale, `size` numbers each. The outputs are written to t.
    """

    def typed(context, x, start, between_taps, taps, parameters, p, size, target, t):
        return types.void(x, int64, int64, int64, parameters, int64, int64, target, int64), code

    def code(context, builder, signature, arguments):
        x, start, between_taps, taps, parameters, p, size, target, t = arguments
        x, parameters, target = (
            context.make_array(signature.args[place])(context, builder, value).data
            for place, value in ((0, x), (4, parameters), (7, target))
        )
        total = vectors.variable(builder, ir.Constant(FLOATS, None))
        with cgutils.for_range(builder, taps) as tap:
            seen = vectors.load(builder, x, builder.add(start, builder.mul(tap.index, between_taps)), FLOATS)
            weight = vectors.load(builder, parameters, builder.add(p, builder.mul(tap.index, size)), FLOATS)
            vectors.accumulate(builder, total, seen, weight)
        bias = builder.add(p, builder.mul(taps, size))
        value = builder.fadd(builder.load(total), vectors.load(builder, parameters, bias, FLOATS))
        if snake:
            alpha = builder.add(bias, size)
            scale = builder.add(alpha, size)
            value = snake_of(
                builder,
                value,
                vectors.load(builder, parameters, alpha, FLOATS),
                vectors.load(builder, parameters, scale, FLOATS),
            )
        vectors.store(builder, target, t, value)
        return context.get_dummy_value()

    return intrinsic(typed)


_plain, _snake = _filter_channels(False), _filter_channels(True)


@compiled
def filter_row(layer, parameters, x, start, target, t):
    """One row of the convolution, which reads x from `start` on -> target, [SIZE] from t on."""
    size, between, taps, p = layer[SIZE], layer[BETWEEN_TAPS], layer[TAPS], layer[PARAMETERS]
    if layer[ACTIVATION] == SNAKE:
        for c in range(0, size, WIDTH):
            _snake(x, start + c, between, taps, parameters, p + c, size, target, t + c)
    else:
        for c in range(0, size, WIDTH):
            _plain(x, start + c, between, taps, parameters, p + c, size, target, t + c)
