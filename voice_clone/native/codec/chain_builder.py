"""Builds a chain of layers from a network's weights: arrays of numpy, or tensors of torch on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from voice_clone.array_kinds import Numbers, array_of
from voice_clone.native.arrays import Array, empty
from voice_clone.native.codec import layer_table, winograd
from voice_clone.native.codec.chain import Before, Chain, padded
from voice_clone.native.sizes import PANEL_OUTPUTS
from voice_clone.position_encoding import alibi_slopes, rotary_frequencies


@dataclass
class Snake:
    """The activation x + scale * sin(alpha * x) ** 2; alpha and scale are [C].

    `affine`: a scale and a shift, [C] each, of what it is applied to; the residual signal has neither.
    """

    alpha: Numbers
    scale: Numbers
    affine: tuple[Numbers, Numbers] | None = None

    @property
    def parameters(self) -> list[Numbers]:
        """In the order in which layers have them."""
        return [self.alpha, self.scale, *(self.affine or ())]


Activation = Snake | Literal["gelu", "gelu_tanh", "elu"] | None

Residual = Literal["untouched", "set", "added"]
"""What a product does with the residual signal: nothing; sets it to the result; adds it to the result, then sets it."""

_RESIDUALS = {"untouched": layer_table.UNTOUCHED, "set": layer_table.SET, "added": layer_table.ADDED}


_ACTIVATIONS = {
    None: layer_table.PLAIN,
    "gelu": layer_table.GELU,
    "gelu_tanh": layer_table.GELU_TANH,
    "elu": layer_table.ELU,
}


def _kind_of(activation: Activation) -> int:
    if isinstance(activation, Snake):
        return layer_table.SNAKE if activation.affine is None else layer_table.AFFINE_SNAKE
    return _ACTIVATIONS[activation]


WINOGRAD_ROWS = 16  # rows of a frame from which on a convolution takes Winograd's form
WINOGRAD_OUTPUTS = 24  # outputs, likewise


class ChainBuilder:
    """Collects layers in their order, then builds the chain. Each layer reads what the layer before it writes.

    Args:
        size: channels of the rows that the first layer reads.
        rate: how many of them are a frame.
        before: what the first layer reads before a stream's first row.
    """

    def __init__(self, size: int, rate: int = 1, before: Before = "zeros") -> None:
        self._inputs = self._size = size
        self._before = before
        self._rate = rate  # rows for each frame that the next layer reads
        self._table: list[list[int]] = []
        self._parameters: list[Array] = []
        self._matrices: list[Array] = []
        self._state = 0
        self._multiplications = 0
        self._frequencies = np.zeros(0, np.float32)
        self._rope_in_bf16 = False

    def convolution(
        self,
        weight: Numbers,
        bias: Numbers | None,
        dilation: int = 1,
        *,
        activation: Activation = None,
        residual: Residual = "untouched",
    ) -> None:
        """A causal convolution, weight [O, C, K].

        It takes Winograd's form if it has that form's kernel, `WINOGRAD_ROWS` rows in a frame, and `WINOGRAD_OUTPUTS`.
        That matrix has 11 / 7 of the weights, and a layer of few rows only waits for its weights. The transform of the
        inputs pays only for many outputs. The form does not depend on the size of chunks, so a stream's bits do not.
        """
        weight = _floats(weight)
        outputs, _, kernel = weight.shape
        if kernel == winograd.TAPS and self._rate >= WINOGRAD_ROWS and outputs >= WINOGRAD_OUTPUTS:
            self._winograd(weight, bias, dilation, activation, residual)
            return
        self._product(_filled(weight.transpose(0, 2, 1)), bias, dilation, outputs, 1, activation, residual)

    def transposed(
        self,
        weight: Numbers,
        bias: Numbers | None,
        stride: int,
        *,
        activation: Activation = None,
        residual: Residual = "untouched",
    ) -> None:
        """A transposed convolution, weight [C, O, K], K a multiple of the stride. Its last K - stride rows are cut."""
        channels, outputs, kernel = weight.shape
        taps = kernel // stride
        parts = _floats(weight).reshape(channels, outputs, taps, stride)
        parts = parts[:, :, ::-1].transpose(3, 1, 2, 0)  # the oldest input meets the last part
        matrix = _filled(_filled(parts, axis=1)).reshape(stride * padded(outputs), taps, -1)
        self._product(matrix, bias, 1, outputs, stride, activation, residual)

    def strided(
        self,
        weight: Numbers,
        bias: Numbers | None,
        stride: int,
        *,
        activation: Activation = None,
        residual: Residual = "untouched",
    ) -> None:
        """A causal convolution, weight [O, C, K], K a multiple of the stride, which divides the rows of a frame.

        Rows lie side by side: those of a stride are one row of more channels, and then the stride is 1.
        """
        if not self._table:
            raise ValueError("a convolution with a stride must not be the first layer of a chain")
        outputs, channels, kernel = weight.shape
        matrix = _filled(_floats(weight).transpose(0, 2, 1))  # [O, K, C]
        self._rate, self._size = self._rate // stride, stride * padded(channels)
        self._product(matrix.reshape(outputs, kernel // stride, -1), bias, 1, outputs, 1, activation, residual)

    def linear(
        self,
        weight: Numbers,
        bias: Numbers | None = None,
        *,
        activation: Activation = None,
        residual: Residual = "untouched",
    ) -> None:
        """A linear layer, weight [O, I]."""
        self.convolution(weight[..., None], bias, activation=activation, residual=residual)

    def norm(self, weight: Numbers, eps: float) -> None:
        """A root-mean-square norm, weight [C]."""
        self._add(layer_table.NORM, [weight, np.array([eps])])

    def layer_norm(self, weight: Numbers, bias: Numbers, eps: float) -> None:
        """A layer norm, weight and bias [C]: a depthwise convolution whose one tap is 1, and its layer norm."""
        self.depthwise(np.ones((len(weight), 1, 1)), np.zeros(len(weight)), weight, bias, eps)

    def gate(self) -> None:
        """silu(first half of the channels) * second half."""
        self._add(layer_table.GATE)
        self._size //= 2

    def attention(self, heads: int, kv_heads: int, window: int, theta: float, rope_in_bf16: bool = False) -> None:
        """Causal attention over a window of positions with rotary embedding of base `theta`.

        With a window of 0 it is over all rows of a call, which then has the whole of a stream. The cosines and sines
        may be rounded to bf16. It reads rows of queries, keys and values, one for each frame. All attention layers of a
        chain have the same head size and rotary embedding.
        """
        self._frequencies = rotary_frequencies(self._attention(heads, kv_heads, window, []), theta)
        self._rope_in_bf16 = rope_in_bf16

    def alibi_attention(self, heads: int, kv_heads: int, window: int) -> None:
        """Causal attention over a window of positions, whose scores fall with distance (ALiBi), at any rate."""
        self._attention(heads, kv_heads, window, [alibi_slopes(heads)])
        self._table[-1][layer_table.ALIBI] = 1

    def norm_of_heads(self, heads: int, kv_heads: int, weights: tuple[Numbers, Numbers], eps: float) -> None:
        """Root-mean-square norms of all queries of a row, and of all its keys, before attention.

        Args:
            weights: [heads * D] and [kv_heads * D].
        """
        self._add(layer_table.QK_NORM, [*weights, np.array([eps])])
        self._table[-1][layer_table.HEADS : layer_table.WINDOW] = [heads, kv_heads]

    def depthwise(self, weight: Numbers, bias: Numbers, norm_weight: Numbers, norm_bias: Numbers, eps: float) -> None:
        """A causal depthwise convolution, weight [C, 1, K], and a layer norm."""
        taps = weight.shape[-1]
        parameters = [_floats(weight)[:, 0].T.ravel(), bias, norm_weight, norm_bias, np.array([eps])]
        self._add(layer_table.DEPTHWISE, parameters, memory=(taps - 1) * padded(self._size))
        self._table[-1][layer_table.TAPS] = taps

    def filter(
        self, weight: Numbers, bias: Numbers | None, dilation: int = 1, *, activation: Snake | None = None
    ) -> None:
        """A causal depthwise convolution, weight [C, 1, K], and maybe Snake, which has no `affine` here."""
        channels, _, taps = weight.shape
        size = padded(channels)
        columns = [*_floats(weight)[:, 0].T, np.zeros(channels) if bias is None else bias]
        if activation is not None:
            columns += activation.parameters
        parameters = [_filled(_floats(each)) for each in columns]
        self._add(layer_table.FILTER, parameters, memory=(taps - 1) * dilation * size)
        layer = self._table[-1]
        layer[layer_table.TAPS], layer[layer_table.BETWEEN_TAPS] = taps, dilation * size
        layer[layer_table.ACTIVATION] = _kind_of(activation)

    def build(self) -> Chain:
        """The chain of all layers. The builder gives up its matrices and must not be used again."""
        self._add(layer_table.END)
        # The matrices become one array, for which the system may use large pages: these speed up layers of few rows,
        # which only wait for their weights. Each layer's own array is dropped as soon as it is copied.
        weights = empty(sum(matrix.size for matrix in self._matrices), np.float32)
        for layer in self._table:
            if layer[layer_table.KIND] in (layer_table.PRODUCT, layer_table.WINOGRAD):
                matrix = self._matrices.pop(0)
                weights[layer[layer_table.WEIGHTS] :][: matrix.size] = matrix
        return Chain(
            layers=np.array(self._table, np.int64),
            weights=weights,
            parameters=np.concatenate(self._parameters),
            inputs=self._inputs,
            outputs=self._size,
            state_size=self._state,
            multiplications=self._multiplications,
            frequencies=self._frequencies,
            rope_in_bf16=self._rope_in_bf16,
            before=self._before,
        )

    def _attention(self, heads: int, kv_heads: int, window: int, parameters: Sequence[Numbers]) -> int:
        """Returns the size of a head."""
        dim = self._size // (heads + 2 * kv_heads)
        self._add(layer_table.ATTENTION, parameters, state=2 * kv_heads * max(0, window - 1) * dim)
        self._table[-1][layer_table.HEADS : layer_table.WINDOW + 1] = [heads, kv_heads, window]
        self._size = heads * dim
        return dim

    def _product(
        self,
        matrix: Array,
        bias: Numbers | None,
        dilation: int,
        outputs: int,
        stride: int,
        activation: Activation,
        residual: Residual,
    ) -> None:
        """matrix: [O, taps, padded(C)], or [stride * padded(O), taps, padded(C)]."""
        taps, inputs = matrix.shape[1:]
        memory = (taps - 1) * dilation * inputs
        if dilation == 1:  # the taps lie side by side
            taps, inputs = 1, taps * inputs
        columns = stride * padded(outputs)
        matrix = _filled(matrix.reshape(len(matrix), -1), axis=0)
        panels = [matrix[begin : begin + PANEL_OUTPUTS].T for begin in range(0, columns, PANEL_OUTPUTS)]
        layer = self._add_matrix(layer_table.PRODUCT, panels, bias, outputs, stride, memory, activation, residual)
        layer[layer_table.TAPS] = taps
        layer[layer_table.BETWEEN_TAPS] = dilation * inputs
        layer[layer_table.INPUTS] = inputs
        self._multiplications += self._rate * matrix.size
        self._rate *= stride

    def _winograd(
        self, weight: Array, bias: Numbers | None, dilation: int, activation: Activation, residual: Residual
    ) -> None:
        """weight: [O, C, K]."""
        outputs, channels, taps = weight.shape
        transformed = _filled(_filled(winograd.transformed(weight), axis=1))
        begins = range(0, transformed.shape[1], PANEL_OUTPUTS)
        panels = [transformed[:, begin : begin + PANEL_OUTPUTS].transpose(0, 2, 1) for begin in begins]
        memory = (taps - 1) * dilation * padded(channels)
        layer = self._add_matrix(layer_table.WINOGRAD, panels, bias, outputs, 1, memory, activation, residual)
        layer[layer_table.DILATION] = dilation
        layer[layer_table.GROUPS] = winograd.groups_in_frame(self._rate, dilation)
        self._multiplications += layer[layer_table.GROUPS] * transformed.size

    def _add_matrix(
        self,
        kind: int,
        panels: list[Array],
        bias: Numbers | None,
        outputs: int,
        stride: int,
        memory: int,
        activation: Activation,
        residual: Residual,
    ) -> list[int]:
        """Add a layer with a matrix. Returns the layer's row of the table."""

        def repeated(values: Numbers) -> Array:
            """The parameters of one output row, padded, for each of the `stride` rows."""
            return np.tile(_filled(_floats(values)), stride)

        parameters = [repeated(np.zeros(outputs) if bias is None else bias)]
        if isinstance(activation, Snake):
            if activation.affine is not None and residual == "set":
                raise ValueError("the residual signal is set by a layer without scale and shift alone")
            parameters += [repeated(each) for each in activation.parameters]
        self._add(kind, parameters, memory=memory)
        layer = self._table[-1]
        layer[layer_table.WEIGHTS] = sum(before.size for before in self._matrices)
        layer[layer_table.COLUMNS] = stride * padded(outputs)
        layer[layer_table.RESIDUAL] = _RESIDUALS[residual]
        layer[layer_table.ACTIVATION] = _kind_of(activation)
        self._matrices.append(np.concatenate([panel.ravel() for panel in panels]))
        self._size = outputs
        return layer

    def _add(self, kind: int, parameters: Sequence[Numbers] = (), memory: int = 0, state: int = 0) -> None:
        """Add a layer that reads rows of the present rate and size."""
        layer = [0] * layer_table.FIELDS
        layer[layer_table.KIND] = kind
        layer[layer_table.RATE] = self._rate
        layer[layer_table.SIZE] = padded(self._size)
        layer[layer_table.CHANNELS] = self._size
        layer[layer_table.MEMORY] = memory
        layer[layer_table.STATE] = self._state
        layer[layer_table.PARAMETERS] = sum(parameter.size for parameter in self._parameters)
        self._parameters += map(_floats, parameters)
        self._state += memory + state
        self._table.append(layer)


def _floats(numbers: Numbers) -> Array:
    return array_of(numbers).astype(np.float32, copy=False)


def _filled(array: Array, axis: int = -1) -> Array:
    """An array with zeros behind, up to what a row of so many channels takes."""
    missing = padded(array.shape[axis]) - array.shape[axis]
    if not missing:
        return array
    widths = [(0, 0)] * array.ndim
    widths[axis] = 0, missing
    return np.pad(array, widths)
