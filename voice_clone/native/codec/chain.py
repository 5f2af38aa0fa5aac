"""A chain of layers, built from a network's tensors and run as native code; see phases.py."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from voice_clone.native.codec import minimal_filtering, phases
from voice_clone.native.codec.convolution import PANEL, ROWS
from voice_clone.native.matrix import table
from voice_clone.native.matrix.dots import WIDTH
from voice_clone.native.matrix.weights import Array
from voice_clone.native.thread_pool import team
from voice_clone.native.transformer.attention import angles


@dataclass
class Snake:
    """x + scale * sin(alpha x) ** 2, each [C]."""

    alpha: Tensor
    scale: Tensor


Activation = Snake | Literal["gelu"] | None

Residual = Literal["untouched", "set", "added"]
"""What a product does with the residual signal: nothing; it becomes it; it is added to it, and the sum goes on."""

_ACTIVATIONS = {Snake: table.SNAKE, str: table.GELU, type(None): table.PLAIN}
_RESIDUALS = {"untouched": table.UNTOUCHED, "set": table.SET, "added": table.ADDED}

FILTERED_ROWS = 16  # of a frame, at least, for minimal filtering


def wide(size: int) -> int:
    """Numbers that a row of `size` channels takes."""
    return -(-size // WIDTH) * WIDTH


class Chain:
    """Layers in the order in which they were added; each takes what the one before it makes.

    Rows are channel-last, [B, T, C]; a stream's T is a number of frames times `rate`, which transposed convolutions
    multiply. A stream's rows are the same, bit for bit, in chunks of any size and beside any other streams.

    Args:
        size: channels of the rows that come in.
    """

    def __init__(self, size: int) -> None:
        self.rate = 1
        self._inputs = self._size = size
        self._table: list[list[int]] = []
        self._parameters: list[Tensor] = []
        self._panels: list[Array] = []  # each layer's, until they are joined
        self._weights = np.empty(0, np.float32)
        self._state = 0
        self.multiplications = 0  # of a frame, in products
        self._frequencies = np.zeros(1, np.float32)
        self._window, self._dim = 1, 0
        self._own: tuple[Array, ...] = ()
        self._buffers = np.zeros(0, np.float32), np.zeros(0, np.float32)
        self._residual = np.zeros(0, np.float32)

    # Layers

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

        It takes the form of minimal filtering if it has that kernel, some rows a frame, and outputs for a panel. Such
        a matrix has 11 / 7 of the weights, and few rows wait for nothing else; the transform of the inputs is worth
        its time for many outputs. Chunks of all sizes take the same form, which keeps a stream's bits.
        """
        outputs, channels, kernel = weight.shape
        if kernel == minimal_filtering.TAPS and self.rate >= FILTERED_ROWS and outputs >= PANEL:
            self._filtered(weight, bias, dilation, activation, residual)
            return
        matrix = F.pad(weight.permute(0, 2, 1), (0, wide(channels) - channels))  # [O, K, C]
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
        """A transposed convolution cut on the right, weight [C, O, K], K a multiple of the stride."""
        channels, outputs, kernel = weight.shape
        taps = kernel // stride
        parts = weight.view(channels, outputs, taps, stride).flip(2)  # the oldest input meets the last part
        parts = F.pad(parts.permute(3, 1, 2, 0), (0, wide(channels) - channels, 0, 0, 0, wide(outputs) - outputs))
        self._product(parts.flatten(0, 1), bias, 1, outputs, stride, activation, residual)

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
        self._add(table.NORM, [weight, torch.tensor([eps])])

    def gate(self) -> None:
        """silu(first half of the channels) * second half."""
        self._add(table.GATE)
        self._size //= 2

    def attention(self, heads: int, kv_heads: int, window: int, theta: float) -> None:
        """Causal attention over a window with rotary embedding; rows are queries, keys and values."""
        dim = self._size // (heads + 2 * kv_heads)
        self._add(table.ATTENTION, state=2 * kv_heads * (window - 1) * dim)
        self._table[-1][table.HEADS : table.WINDOW + 1] = [heads, kv_heads, window]
        exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
        self._frequencies = (1.0 / np.float32(theta) ** exponents).astype(np.float32)
        self._window, self._dim = window, dim
        self._size = heads * dim

    def depthwise(self, weight: Tensor, bias: Tensor, norm_weight: Tensor, norm_bias: Tensor, eps: float) -> None:
        """A causal depthwise convolution, weight [C, 1, K], and a layer norm."""
        taps = weight.shape[-1]
        parameters = [weight[:, 0].T.flatten(), bias, norm_weight, norm_bias, torch.tensor([eps])]
        self._add(table.DEPTHWISE, parameters, memory=(taps - 1) * wide(self._size))
        self._table[-1][table.TAPS] = taps

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
        """matrix: [stride * O or O, taps, wide(C)]."""
        taps, inputs = matrix.shape[1:]
        memory = (taps - 1) * dilation * inputs
        if dilation == 1:  # the taps lie side by side
            taps, inputs = 1, taps * inputs
        columns = stride * wide(outputs)
        matrix = matrix.flatten(1).float()
        matrix = F.pad(matrix, (0, 0, 0, columns - matrix.shape[0]))
        panels = [panel.T for panel in torch.split(matrix, PANEL)]
        layer = self._matrix(table.PRODUCT, panels, bias, outputs, stride, memory, activation, residual)
        layer[table.TAPS] = taps
        layer[table.BETWEEN_TAPS] = dilation * inputs
        layer[table.INPUTS] = inputs
        self.multiplications += self.rate * matrix.numel()
        self.rate *= stride

    def _filtered(
        self, weight: Tensor, bias: Tensor | None, dilation: int, activation: Activation, residual: Residual
    ) -> None:
        """weight: [O, C, K]."""
        outputs, channels, taps = weight.shape
        forms = minimal_filtering.taps_forms(weight)
        forms = F.pad(forms, (0, wide(channels) - channels, 0, wide(outputs) - outputs))
        panels = [panel.transpose(1, 2) for panel in torch.split(forms, PANEL, dim=1)]
        memory = (taps - 1) * dilation * wide(channels)
        layer = self._matrix(table.FILTERED, panels, bias, outputs, 1, memory, activation, residual)
        layer[table.DILATION] = dilation
        layer[table.GROUPS] = minimal_filtering.groups_in_frame(self.rate, dilation)
        self.multiplications += layer[table.GROUPS] * forms.numel()

    def _matrix(
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
        """A layer with a matrix and what follows its sums: its row of the table."""

        def each(values: Tensor) -> Tensor:
            return F.pad(values.float(), (0, wide(outputs) - outputs)).repeat(stride)

        parameters = [each(torch.zeros(outputs) if bias is None else bias)]
        if isinstance(activation, Snake):
            parameters += [each(activation.alpha), each(activation.scale)]
        self._add(kind, parameters, memory=memory)
        layer = self._table[-1]
        layer[table.WEIGHTS] = sum(before.size for before in self._panels)
        layer[table.COLUMNS] = stride * wide(outputs)
        layer[table.RESIDUAL] = _RESIDUALS[residual]
        layer[table.ACTIVATION] = _ACTIVATIONS[type(activation)]
        self._panels.append(torch.cat([panel.flatten() for panel in panels]).numpy())
        self._size = outputs
        return layer

    def _add(self, kind: int, parameters: list[Tensor] | None = None, memory: int = 0, state: int = 0) -> None:
        layer = [0] * table.FIELDS
        layer[table.KIND] = kind
        layer[table.RATE] = self.rate
        layer[table.SIZE] = wide(self._size)
        layer[table.CHANNELS] = self._size
        layer[table.MEMORY] = memory
        layer[table.STATE] = self._state
        layer[table.PARAMETERS] = sum(parameter.numel() for parameter in self._parameters)
        self._parameters += parameters or []
        self._state += memory + state
        self._table.append(layer)

    # Running

    def close(self) -> None:
        """No layer follows."""
        self._add(table.END)
        self._layers = np.array(self._table, np.int64)
        self._flat_parameters = torch.cat([parameter.detach().float() for parameter in self._parameters]).numpy()
        self._parameters = []
        # In one piece, for which the system may take large pages: few rows wait for nothing but weights. Each layer's
        # own copy goes as soon as it is there.
        self._weights = np.empty(sum(panels.size for panels in self._panels), np.float32)
        for layer in self._table:
            if layer[table.KIND] in (table.PRODUCT, table.FILTERED):
                panels = self._panels.pop(0)
                self._weights[layer[table.WEIGHTS] :][: panels.size] = panels

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices."""
        return self._weights.nbytes

    def new_state(self, batch: int) -> Tensor:
        """[B, S] zeros: of streams before their first frame."""
        return torch.zeros(batch, self._state)

    def __call__(self, x: Tensor, state: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """The next rows of B streams.

        Args:
            x: float32 [B, T, C], T frames.
            state: [B, S]; stays as it is.
            position: int64 [B], of the first frame.

        Returns: rows [B, T * rate, C'], which the next call overwrites, and the next state.
        """
        batch, frames, _ = x.shape
        self._resize(batch, frames)
        first = self._buffers[0][: batch * frames * wide(self._inputs)].reshape(batch, frames, -1)
        first[..., : self._inputs] = x.numpy()
        first[..., self._inputs :] = 0
        cos, sin = (np.empty((batch, frames, self._dim // 2), np.float32) for _ in range(2))
        where = position.numpy()
        angles(where, self._frequencies, cos, sin)
        next_state = torch.empty_like(state)
        count = len(self._layers) - 1
        team().run(
            phases.run,
            count,
            batch * frames * self.multiplications,
            self._layers,
            self._weights,
            self._flat_parameters,
            self._buffers,
            self._residual,
            self._own,
            frames,
            (where, cos, sin),
            (state.numpy(), next_state.numpy()),
        )
        rows, size = frames * self._layers[-1, table.RATE], self._layers[-1, table.SIZE]
        result = self._buffers[count % 2][: batch * rows * size].reshape(batch, rows, size)
        return torch.from_numpy(result[..., : self._size]), next_state

    def _resize(self, batch: int, frames: int) -> None:
        """Memory for so many rows at least; it stays for the next call."""
        threads = team().threads
        lengths = self._layers[:, table.MEMORY] + frames * self._layers[:, table.RATE] * self._layers[:, table.SIZE]
        size = batch * int(lengths.max())
        if size > self._residual.size:
            self._buffers = np.empty(size, np.float32), np.empty(size, np.float32)
            self._residual = np.empty(size, np.float32)
        keys = (self._window - 1 + frames) * self._dim
        sums, forms = phases.TILES * ROWS * PANEL, 0
        for layer in self._layers[self._layers[:, table.KIND] == table.FILTERED]:
            groups = min(phases.MOST_GROUPS, batch * frames * int(layer[table.GROUPS]))
            sums = max(sums, minimal_filtering.PRODUCTS * groups * PANEL)
            rows = minimal_filtering.PRODUCTS * groups + minimal_filtering.INPUTS
            forms = max(forms, rows * int(layer[table.SIZE]))
        sizes = sums, keys, keys, self._window, forms
        have = [own.shape[1] for own in self._own]
        if not self._own or threads > len(self._own[0]) or any(map(operator.gt, sizes, have)):
            self._own = tuple(np.zeros((threads, each), np.float32) for each in sizes)
