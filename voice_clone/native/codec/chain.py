"""A chain of layers over channel-last rows, run as one call of native code."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from voice_clone.native.codec import layer_table, winograd
from voice_clone.native.codec.attention import rotary_tables
from voice_clone.native.codec.chain_kernel import BLOCK_GROUPS, BLOCK_TILES, run_chain
from voice_clone.native.codec.panels import PANEL_OUTPUTS, TILE_ROWS
from voice_clone.native.matrix.weights import Array, empty, zeros
from voice_clone.native.thread_pool import thread_pool
from voice_clone.native.vectors import WIDTH

_ROPE_DTYPES = (torch.float32, torch.bfloat16)


def padded(size: int) -> int:
    """How many numbers a row of `size` channels takes: a multiple of WIDTH."""
    return -(-size // WIDTH) * WIDTH


class Chain:
    """Layers that each read what the layer before writes; `ChainBuilder` makes it.

    Rows are channel-last, [B, T, C]. At the beginning of the chain T is a number of frames; a transposed convolution
    multiplies it. The rows of a stream are the same, bit for bit, in chunks of any size and beside any other streams.

    Args:
        layers: the layer table, int64 [layers + 1, FIELDS].
        weights, parameters: float32, as `run_chain` takes them.
        inputs, outputs: channels of the rows that the chain reads and writes.
        state_size: numbers of a stream's state.
        multiplications: for each frame, in products.
        window, head_dim: of attention layers, if there are any.
        frequencies: of the rotary embedding, float32 [head_dim / 2], radians per position.
        rope_dtype: to which its cosines and sines are rounded.
    """

    def __init__(
        self,
        *,
        layers: Array,
        weights: Array,
        parameters: Array,
        inputs: int,
        outputs: int,
        state_size: int,
        multiplications: int,
        window: int,
        head_dim: int,
        frequencies: Array,
        rope_dtype: torch.dtype,
    ) -> None:
        self.multiplications = multiplications
        self._layers, self._weights, self._parameters = layers, weights, parameters
        self._inputs, self._outputs = inputs, outputs
        self._state_size = state_size
        self._window, self._dim = window, head_dim
        self._frequencies, self._rope_dtype = frequencies, rope_dtype
        self._per_thread: tuple[Array, ...] = ()
        self._buffers = np.zeros(0, np.float32), np.zeros(0, np.float32)
        self._residual = np.zeros(0, np.float32)

    @property
    def arrays(self) -> list[Array]:
        """All that the chain is made of; `restored` makes it again."""
        numbers = (
            self._inputs,
            self._outputs,
            self._state_size,
            self.multiplications,
            self._window,
            self._dim,
            _ROPE_DTYPES.index(self._rope_dtype),
        )
        return [self._layers, self._weights, self._parameters, self._frequencies, np.array(numbers, np.int64)]

    @staticmethod
    def restored(arrays: Sequence[Array]) -> Chain:
        """The chain that these are the `arrays` of."""
        layers, weights, parameters, frequencies, numbers = arrays
        inputs, outputs, state_size, multiplications, window, head_dim, rope_dtype = (int(each) for each in numbers)
        return Chain(
            layers=layers,
            weights=weights,
            parameters=parameters,
            inputs=inputs,
            outputs=outputs,
            state_size=state_size,
            multiplications=multiplications,
            window=window,
            head_dim=head_dim,
            frequencies=frequencies,
            rope_dtype=_ROPE_DTYPES[rope_dtype],
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices."""
        return self._weights.nbytes

    def new_state(self, batch: int) -> Tensor:
        """The state of streams before their first frame: zeros, float32 [B, S]."""
        return torch.zeros(batch, self._state_size)

    def __call__(self, x: Tensor, state: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """The next rows of B streams.

        Args:
            x: float32 [B, T, C], T frames.
            state: float32 [B, S]; it is not changed.
            position: int64 [B], of each stream's first frame in x.

        Returns:
            Rows, float32 [B, T', C'], which the next call overwrites, and the next state.
        """
        batch, frames, _ = x.shape
        self._resize(batch, frames)
        first = self._buffers[0][: batch * frames * padded(self._inputs)].reshape(batch, frames, -1)
        first[..., : self._inputs] = x.numpy()
        first[..., self._inputs :] = 0
        first_positions = position.numpy()
        cos, sin = self._rotary(position, frames)
        next_state = torch.empty_like(state)
        count = len(self._layers) - 1
        thread_pool().run(
            run_chain,
            count,
            batch * frames * self.multiplications,
            self._layers,
            self._weights,
            self._parameters,
            self._buffers,
            self._residual,
            self._per_thread,
            frames,
            (first_positions, cos, sin),
            (state.numpy(), next_state.numpy()),
        )
        rows, size = frames * self._layers[-1, layer_table.RATE], self._layers[-1, layer_table.SIZE]
        result = self._buffers[count % 2][: batch * rows * size].reshape(batch, rows, size)
        return torch.from_numpy(result[..., : self._outputs]), next_state

    def _rotary(self, position: Tensor, frames: int) -> tuple[Array, Array]:
        """cos and sin of the next frames, float32 [B, frames, D / 2]."""
        if self._rope_dtype == torch.float32:
            shape = len(position), frames, self._dim // 2
            cos, sin = np.empty(shape, np.float32), np.empty(shape, np.float32)
            rotary_tables(position.numpy(), self._frequencies, cos, sin)
            return cos, sin
        places = (position[:, None] + torch.arange(frames)).float()
        angles = places[..., None] * torch.from_numpy(self._frequencies)
        turned = torch.polar(torch.ones_like(angles), angles)  # as `rotary_cos_sin` of the layers
        rounded = [part.to(self._rope_dtype).float().numpy() for part in (turned.real, turned.imag)]
        return rounded[0], rounded[1]

    def _resize(self, batch: int, frames: int) -> None:
        """Make the memory fit at least so many streams and frames. It never shrinks."""
        threads = thread_pool().threads
        table = self._layers
        lengths = table[:, layer_table.MEMORY] + frames * table[:, layer_table.RATE] * table[:, layer_table.SIZE]
        size = batch * int(lengths.max())
        if size > self._residual.size:
            self._buffers = empty(size, np.float32), empty(size, np.float32)
            self._residual = empty(size, np.float32)
        keys = (self._window - 1 + frames) * self._dim
        sums, transformed = BLOCK_TILES * TILE_ROWS * PANEL_OUTPUTS, 0
        for layer in table[table[:, layer_table.KIND] == layer_table.WINOGRAD]:
            groups = min(BLOCK_GROUPS, batch * frames * int(layer[layer_table.GROUPS]))
            sums = max(sums, winograd.PRODUCTS * groups * PANEL_OUTPUTS)
            rows = winograd.PRODUCTS * groups + winograd.INPUTS
            transformed = max(transformed, rows * int(layer[layer_table.SIZE]))
        sizes = sums, keys, keys, self._window, transformed
        present = [array.shape[1] for array in self._per_thread]
        if not self._per_thread or threads > len(self._per_thread[0]) or any(map(operator.gt, sizes, present)):
            self._per_thread = tuple(zeros((threads, each), np.float32) for each in sizes)
