"""Dilated causal convolutions of `TAPS` taps with fewer multiplications: minimal filtering, known by Winograd's name.

The filter F(4, 7): `OUTPUTS` outputs that lie a dilation apart are a part of the product of two polynomials, the inputs
under them and the taps. Both are evaluated at points instead; there a product is one multiplication for each pair of
channels. So `PRODUCTS` = 11 multiplications take the place of 4 * 7. (S. Winograd, Arithmetic Complexity of
Computations, 1980; L. Meng and J. Brothers, Efficient Winograd convolution via integer arithmetic, 2019, for points
that are not real.)

    inputs      x_0 ... x_9 of a channel, a dilation apart -> their forms v_p, sums of multiples of them
    products    m_p = sum over the channels of u_p v_p, where u_p is the taps' form, made once
    outputs     y_k = sum of p ** k m_p over the points; infinity's product is in the last y alone

The points are 0, infinity, pairs of opposite numbers, and i with its conjugate, for which three products stand: of the
real parts, of the imaginary ones, and of both's sums. Opposite points share the even and the odd part of their forms.
With real points alone one product less would do, but its rounding errors are some four times as large.

A group of outputs never leaves its frame, so it is the same in chunks of any size. In a frame groups lie in blocks of
`OUTPUTS` * dilation rows, one beginning at each of the block's first rows. In a frame's last block groups have fewer
outputs, and what lies behind the frame counts as zeros.
"""

# mypy: ignore-errors
# What follows is numba's language, whose types are those of the arguments.

import numpy as np
import torch
from numba import float32, int64, njit, types
from numba.extending import intrinsic
from torch import Tensor

from voice_clone.native.codec.convolution import _FLOATS, PANEL, ROWS, _constant, _store
from voice_clone.native.matrix.dense import add_tile, finish
from voice_clone.native.matrix.dots import WIDTH, _fma, _index, _load
from voice_clone.native.matrix.table import COLUMNS, DILATION, GROUPS, RATE, SIZE, WEIGHTS
from voice_clone.native.transformer.kernels import _OPTIONS

TAPS = 7
OUTPUTS = 4  # of a group
INPUTS = OUTPUTS + TAPS - 1  # under them
PAIRS = (0.5, 1.0, 2.0)  # points, each with its opposite
PRODUCTS = INPUTS + 1

_SQUARES = [*(value**2 for value in PAIRS), -1.0]  # of all points but 0 and infinity


def groups_in_frame(rate: int, dilation: int) -> int:
    """Groups of outputs in a frame of `rate` rows."""
    blocks, rest = divmod(rate, OUTPUTS * dilation)
    return blocks * dilation + min(dilation, rest)


def taps_forms(weight: Tensor) -> Tensor:
    """A weight's forms: [O, C, TAPS] -> float32 [PRODUCTS, O, C]."""
    real = np.array([0.0, *(sign * value for value in PAIRS for sign in (1, -1))])
    # What the inputs' forms leave out: the denominators of Lagrange's polynomials.
    distances = (real[:, None] - real + np.eye(len(real))).prod(axis=1) * (real**2 + 1)
    powers = real[:, None] ** np.arange(TAPS) / distances[:, None]
    turns = 1j ** np.arange(TAPS) / np.prod([-1 - value**2 for value in PAIRS])
    infinity = np.eye(TAPS)[-1]
    rows = np.vstack([powers, -turns.real, turns.imag, turns.real + turns.imag, infinity])
    return torch.einsum("pk,ock->poc", torch.from_numpy(rows), weight.double()).float()


def _evaluated(builder, squares, values):
    """The sum of `values` times the coefficients of the product of z - square over `squares`, the lowest first."""
    *coefficients, _ = np.poly(squares)[::-1]  # the highest is 1
    *values, total = values
    for coefficient, value in zip(reversed(coefficients), reversed(values), strict=True):
        total = _fma(builder, _constant(coefficient), value, total)
    return total


@intrinsic
def _inputs_forms(context, x, start, between, v, at, between_forms):
    """WIDTH channels of a group: inputs x from `start` on, each `between` -> forms v from `at` on, each
    `between_forms`.
    """

    def code(context, builder, signature, arguments):
        x, start, between, v, at, between_forms = arguments
        x, v = (
            context.make_array(signature.args[place])(context, builder, value).data for place, value in ((0, x), (3, v))
        )
        inputs = [
            _load(builder, x, builder.add(start, builder.mul(between, _index(i))), _FLOATS) for i in range(INPUTS)
        ]
        even, odd = inputs[::2], inputs[1::2]
        forms = [_evaluated(builder, _SQUARES, even)]
        for value, square in zip((*PAIRS, 1.0), _SQUARES, strict=True):
            others = [other for other in _SQUARES if other != square]
            a, b = _evaluated(builder, others, even[1:]), _evaluated(builder, others, odd[:-1])
            forms += [_fma(builder, _constant(sign * value), b, a) for sign in (1, -1)]
        forms += [b, _evaluated(builder, _SQUARES, odd)]
        for p, form in enumerate(forms):
            _store(builder, v, builder.add(at, builder.mul(between_forms, _index(p))), form)
        return context.get_dummy_value()

    return types.void(x, int64, int64, v, int64, int64), code


@intrinsic
def _outputs(context, sums, s, between):
    """WIDTH outputs of a group: products from `s` on, each `between` -> outputs in place of the first ones."""

    def code(context, builder, signature, arguments):
        sums, s, between = arguments
        sums = context.make_array(signature.args[0])(context, builder, sums).data
        places = [builder.add(s, builder.mul(between, _index(p))) for p in range(PRODUCTS)]
        zero, *opposite, real, imaginary, both, infinity = (_load(builder, sums, place, _FLOATS) for place in places)
        pairs = list(zip(opposite[::2], opposite[1::2], strict=True))
        even = [builder.fadd(a, b) for a, b in pairs] + [builder.fadd(real, both)]
        odd = [builder.fsub(a, b) for a, b in pairs] + [builder.fadd(imaginary, both)]
        for k in range(OUTPUTS):
            powers = [*(value**k for value in PAIRS), (-1) ** (k // 2)]
            parts = [*zip(powers, odd if k % 2 else even, strict=True)]
            if k == 0:
                total = zero
            elif k == OUTPUTS - 1:
                total = infinity
            else:
                power, part = parts.pop()
                total = builder.fmul(_constant(power), part)
            for power, part in parts:
                total = _fma(builder, _constant(power), part, total)
            _store(builder, sums, places[k], total)
        return context.get_dummy_value()

    return types.void(sums, int64, int64), code


@njit(**_OPTIONS)
def _place(layer, group):
    """Of a group of those of all streams' frames: its frame, and its first row there."""
    each, dilation = layer[GROUPS], layer[DILATION]
    j = group % each
    return group // each, j // dilation * dilation * OUTPUTS + j % dilation


@njit(**_OPTIONS)
def transform(layer, x, span, frames, groups, v):
    """The inputs of some groups -> their forms v [PRODUCTS, groups, SIZE], behind which is room for INPUTS rows.

    x: a stream's rows, `frames` frames of them, begin each `span` numbers. groups: first, last.
    """
    rate, size, dilation = layer[RATE], layer[SIZE], layer[DILATION]
    between, between_forms = dilation * size, (groups[1] - groups[0]) * size
    room = PRODUCTS * between_forms
    for group in range(*groups):
        frame, row = _place(layer, group)
        start = frame // frames * span + (frame % frames * rate + row) * size
        at = (group - groups[0]) * size
        inside = TAPS - 1 + (rate - row + dilation - 1) // dilation  # inputs before the frame's end
        if inside >= INPUTS:
            for c in range(0, size, WIDTH):
                _inputs_forms(x, start + c, between, v, at + c, between_forms)
        else:
            for i in range(INPUTS):
                for c in range(size):
                    v[room + i * size + c] = x[start + i * between + c] if i < inside else float32(0)
            for c in range(0, size, WIDTH):
                _inputs_forms(v, room + c, size, v, at + c, between_forms)


@njit(**_OPTIONS)
def filtered(layer, weights, parameters, v, frames, panels, groups, sums, residual, target, lead, length):
    """Some panels of a convolution, for some groups, whose inputs' forms are v.

    A panel's weights are those of each form, one after the other. target: as of `dense.product`.
    """
    rate, size, columns, dilation = layer[RATE], layer[SIZE], layer[COLUMNS], layer[DILATION]
    count = groups[1] - groups[0]
    for panel in range(*panels):
        column = panel * PANEL
        width = min(PANEL, columns - column)
        w = layer[WEIGHTS] + column * PRODUCTS * size
        for p in range(PRODUCTS):
            for g in range(0, count, ROWS):
                n = p * count + g
                rows = min(ROWS, count - g)
                add_tile(weights, w, width, v, n * size, rows, size, 1, 0, size, sums, n * PANEL, True)
            w += size * width
        for g in range(count):
            for c in range(0, width, WIDTH):
                _outputs(sums, g * PANEL + c, count * PANEL)
            frame, row = _place(layer, groups[0] + g)
            stream = frame // frames
            for k in range(min(OUTPUTS, (rate - row + dilation - 1) // dilation)):
                n = frame * rate + row + k * dilation
                begin = stream * length + lead + (n - stream * frames * rate) * columns
                finish(layer, parameters, sums, (k * count + g) * PANEL, column, width, n, residual, target, begin)
