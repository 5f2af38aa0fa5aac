"""Builds a chain of layers from a network's tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from voice_clone.native.arrays import Array, empty
from voice_clone.native.codec import layer_table, winograd
from voice_clone.native.codec.chain import Chain, padded
from voice_clone.native.sizes import PANEL_OUTPUTS


@dataclass
class Snake:
    """The activation x + scale * sin(alpha * x) ** 2; alpha and scale are [C].

    `affine`: a scale and a shift, [C] each, of what it is applied to; the residual signal has neither.
    """

    alpha: Tensor
    scale: Tensor
    affine: tuple[Tensor, Tensor] | None = None

    @property
    def parameters(self) -> list[Tensor]:
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
    """

    def __init__(self, size: int, rate: int = 1) -> None:
        self._inputs = self._size = size
        self._rate = rate  # rows for each frame that the next layer reads
        self._table: list[list[int]] = []
        self._parameters: list[Tensor] = []
        self._matrices: list[Array] = []
        self._state = 0
        self._multiplications = 0
        self._frequencies = np.zeros(1, np.float32)
        self._window, self._dim = 1, 0
        self._rope_in_bf16 = False

    def convolution(
        self,
        weight: Tensor,
        bias: Tensor | None,
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
        outputs, channels, kernel = weight.shape
        if kernel == winograd.TAPS and self._rate >= WINOGRAD_ROWS and outputs >= WINOGRAD_OUTPUTS:
            self._winograd(weight, bias, dilation, activation, residual)
            return
        matrix = F.pad(weight.permute(0, 2, 1), (0, padded(channels) - channels))  # [O, K, C]
        self._product(matrix, bias, dilation, outputs, 1, activation, residual)

    def transposed(
        self,
        weight: Tensor,
        bias: Tensor | None,
        stride: int,
        *,
        activation: Activation = None,
        residual: Residual = "untouched",
    ) -> None:
        """A transposed convolution, weight [C, O, K], K a multiple of the stride. Its last K - stride rows are cut."""
        channels, outputs, kernel = weight.shape
        taps = kernel // stride
        parts = weight.view(channels, outputs, taps, stride).flip(2)  # the oldest input meets the last part
        padding = (0, padded(channels) - channels, 0, 0, 0, padded(outputs) - outputs)
        parts = F.pad(parts.permute(3, 1, 2, 0), padding)
        self._product(parts.flatten(0, 1), bias, 1, outputs, stride, activation, residual)

    def strided(
        self,
        weight: Tensor,
        bias: Tensor | None,
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
        matrix = F.pad(weight.permute(0, 2, 1), (0, padded(channels) - channels))  # [O, K, C]
        self._rate, self._size = self._rate // stride, stride * padded(channels)
        self._product(matrix.reshape(outputs, kernel // stride, -1), bias, 1, outputs, 1, activation, residual)

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: Activation = None,
        residual: Residual = "untouched",
    ) -> None:
        """A linear layer, weight [O, I]."""
        self.convolution(weight[..., None], bias, activation=activation, residual=residual)

    def norm(self, weight: Tensor, eps: float) -> None:
        """A root-mean-square norm, weight [C]."""
        self._add(layer_table.NORM, [weight, torch.tensor([eps])])

    def layer_norm(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        """A layer norm, weight and bias [C]: a depthwise convolution whose one tap is 1, and its layer norm."""
        self.depthwise(torch.ones(len(weight), 1, 1), torch.zeros(len(weight)), weight, bias, eps)

    def gate(self) -> None:
        """silu(first half of the channels) * second half."""
        self._add(layer_table.GATE)
        self._size //= 2

    def attention(
        self, heads: int, kv_heads: int, window: int, theta: float, rope_dtype: torch.dtype = torch.float32
    ) -> None:
        """Causal attention over a window of positions with rotary embedding of base `theta`.

        With a window of 0 it is over all rows of a call, which then has the whole of a stream. The cosines and sines
        are rounded to `rope_dtype`, fp32 or bf16. It reads rows of queries, keys and values. All attention layers of a
        chain have the same window and head size.
        """
        dim = self._size // (heads + 2 * kv_heads)
        self._add(layer_table.ATTENTION, state=2 * kv_heads * max(0, window - 1) * dim)
        self._table[-1][layer_table.HEADS : layer_table.WINDOW + 1] = [heads, kv_heads, window]
        exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
        self._frequencies = (1.0 / np.float32(theta) ** exponents).astype(np.float32)
        self._window, self._dim, self._rope_in_bf16 = window, dim, rope_dtype == torch.bfloat16
        self._size = heads * dim

    def depthwise(self, weight: Tensor, bias: Tensor, norm_weight: Tensor, norm_bias: Tensor, eps: float) -> None:
        """A causal depthwise convolution, weight [C, 1, K], and a layer norm."""
        taps = weight.shape[-1]
        parameters = [weight[:, 0].T.flatten(), bias, norm_weight, norm_bias, torch.tensor([eps])]
        self._add(layer_table.DEPTHWISE, parameters, memory=(taps - 1) * padded(self._size))
        self._table[-1][layer_table.TAPS] = taps

    def filter(
        self, weight: Tensor, bias: Tensor | None, dilation: int = 1, *, activation: Snake | None = None
    ) -> None:
        """A causal depthwise convolution, weight [C, 1, K], and maybe Snake, which has no `affine` here."""
        channels, _, taps = weight.shape
        size = padded(channels)
        columns = [*weight[:, 0].T, torch.zeros(channels) if bias is None else bias]
        if activation is not None:
            columns += activation.parameters
        parameters = [F.pad(each.float(), (0, size - channels)) for each in columns]
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
            parameters=torch.cat([parameter.detach().float() for parameter in self._parameters]).numpy(),
            inputs=self._inputs,
            outputs=self._size,
            state_size=self._state,
            multiplications=self._multiplications,
            window=self._window,
            frequencies=self._frequencies,
            head_dim=self._dim,
            rope_in_bf16=self._rope_in_bf16,
        )

    def _product(
        self,
        matrix: Tensor,
        bias: Tensor | None,
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
        matrix = matrix.flatten(1).float()
        matrix = F.pad(matrix, (0, 0, 0, columns - matrix.shape[0]))
        panels = [panel.T for panel in torch.split(matrix, PANEL_OUTPUTS)]
        layer = self._add_matrix(layer_table.PRODUCT, panels, bias, outputs, stride, memory, activation, residual)
        layer[layer_table.TAPS] = taps
        layer[layer_table.BETWEEN_TAPS] = dilation * inputs
        layer[layer_table.INPUTS] = inputs
        self._multiplications += self._rate * matrix.numel()
        self._rate *= stride

    def _winograd(
        self, weight: Tensor, bias: Tensor | None, dilation: int, activation: Activation, residual: Residual
    ) -> None:
        """weight: [O, C, K]."""
        outputs, channels, taps = weight.shape
        transforms = torch.from_numpy(winograd.TAP_TRANSFORM)
        transformed = torch.einsum("pk,ock->poc", transforms, weight.double()).float()
        transformed = F.pad(transformed, (0, padded(channels) - channels, 0, padded(outputs) - outputs))
        panels = [panel.transpose(1, 2) for panel in torch.split(transformed, PANEL_OUTPUTS, dim=1)]
        memory = (taps - 1) * dilation * padded(channels)
        layer = self._add_matrix(layer_table.WINOGRAD, panels, bias, outputs, 1, memory, activation, residual)
        layer[layer_table.DILATION] = dilation
        layer[layer_table.GROUPS] = winograd.groups_in_frame(self._rate, dilation)
        self._multiplications += layer[layer_table.GROUPS] * transformed.numel()

    def _add_matrix(
        self,
        kind: int,
        panels: list[Tensor],
        bias: Tensor | None,
        outputs: int,
        stride: int,
        memory: int,
        activation: Activation,
        residual: Residual,
    ) -> list[int]:
        """Add a layer with a matrix. Returns the layer's row of the table."""

        def repeated(values: Tensor) -> Tensor:
            """The parameters of one output row, padded, for each of the `stride` rows."""
            return F.pad(values.float(), (0, padded(outputs) - outputs)).repeat(stride)

        parameters = [repeated(torch.zeros(outputs) if bias is None else bias)]
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
        self._matrices.append(torch.cat([panel.flatten() for panel in panels]).numpy())
        self._size = outputs
        return layer

    def _add(self, kind: int, parameters: list[Tensor] | None = None, memory: int = 0, state: int = 0) -> None:
        """Add a layer that reads rows of the present rate and size."""
        layer = [0] * layer_table.FIELDS
        layer[layer_table.KIND] = kind
        layer[layer_table.RATE] = self._rate
        layer[layer_table.SIZE] = padded(self._size)
        layer[layer_table.CHANNELS] = self._size
        layer[layer_table.MEMORY] = memory
        layer[layer_table.STATE] = self._state
        layer[layer_table.PARAMETERS] = sum(parameter.numel() for parameter in self._parameters)
        self._parameters += parameters or []
        self._state += memory + state
        self._table.append(layer)
