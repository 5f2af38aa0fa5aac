"""A chain of layers over channel-last rows, run as one call of native code; chain_builder.py makes it."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Literal

import numpy as np

from voice_clone.native.arrays import Array, empty, zeros
from voice_clone.native.codec import layer_table, winograd
from voice_clone.native.kernel import Fixed, Kernel
from voice_clone.native.matrix.rounding import in_bf16
from voice_clone.native.sizes import BLOCK_GROUPS, BLOCK_TILES, PANEL_OUTPUTS, TILE_ROWS, WIDTH
from voice_clone.native.thread_pool import thread_pool

run_chain = Kernel("codec.chain_kernel.run_chain")
rotary_tables = Kernel("codec.chain_kernel.rotary_tables")

Before = Literal["zeros", "first", "mirrored"]
"""What a chain's first layer reads before a stream's first row: zeros; that row; the rows behind it in reverse."""
BEFORE: tuple[Before, ...] = "zeros", "first", "mirrored"


def padded(size: int) -> int:
    """How many numbers a row of `size` channels takes: a multiple of WIDTH."""
    return -(-size // WIDTH) * WIDTH


class Chain:
    """Layers, each of which reads what the layer before it writes.

    Rows are channel-last, [B, T, C]. At the beginning of the chain T is a number of frames, or a multiple of it; a
    transposed convolution multiplies it, and one with a stride divides it. The rows of a stream are the same, bit for
    bit, in chunks of any size and beside any other streams.

    Args:
        layers: the layer table, int64 [layers + 1, FIELDS].
        weights, parameters: float32, as `run_chain` takes them.
        inputs, outputs: channels of the rows that the chain reads and writes.
        state_size: numbers of a stream's state.
        multiplications: for each frame, in products.
        frequencies: of the rotary embedding of attention layers, float32 [head_dim / 2], radians per position; with
            attention by ALiBi, or without attention, there are none.
        rope_in_bf16: whether its cosines and sines are rounded to bf16.
        before: with `mirrored` the first chunk of a stream must have more rows than the first layer remembers.

    Attributes:
        usual_frames: of all streams in a call; memory for them is made at once, for what is freed to grow stays with
            the process.
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
        frequencies: Array,
        rope_in_bf16: bool,
        before: Before = "zeros",
    ) -> None:
        self.multiplications = multiplications
        self._layers, self._weights, self.parameters = layers, weights, parameters
        self._inputs, self._outputs = inputs, outputs
        self._state_size = state_size
        self._frequencies, self._rope_in_bf16, self._before = frequencies, rope_in_bf16, before
        self.per_thread: tuple[Array, ...] = ()
        self.usual_frames = 1
        self._release()

    @property
    def arrays(self) -> list[Array]:
        """All arrays of the chain; `restored` makes a chain of them."""
        numbers = (
            self._inputs,
            self._outputs,
            self._state_size,
            self.multiplications,
            self._rope_in_bf16,
            BEFORE.index(self._before),
        )
        return [self._layers, self._weights, self.parameters, self._frequencies, np.array(numbers, np.int64)]

    @staticmethod
    def restored(arrays: Sequence[Array]) -> Chain:
        """Make the chain whose `arrays` these are."""
        layers, weights, parameters, frequencies, numbers = arrays
        inputs, outputs, state_size, multiplications, rope_in_bf16, before = (int(each) for each in numbers)
        return Chain(
            layers=layers,
            weights=weights,
            parameters=parameters,
            inputs=inputs,
            outputs=outputs,
            state_size=state_size,
            multiplications=multiplications,
            frequencies=frequencies,
            rope_in_bf16=bool(rope_in_bf16),
            before=BEFORE[before],
        )

    @property
    def nbytes(self) -> int:
        return self._weights.nbytes

    @property
    def frames_back(self) -> int:
        """How many frames back the convolutions look."""
        table = self._layers
        rows = table[:, layer_table.MEMORY] / table[:, layer_table.SIZE]
        return math.ceil(float((rows / table[:, layer_table.RATE]).sum()))

    def new_state(self, batch: int) -> Array:
        """The state of streams before their first frame: zeros, float32 [B, S]."""
        return np.zeros((batch, self._state_size), np.float32)

    def __call__(self, x: Array, state: Array, position: Array) -> tuple[Array, Array]:
        """The next rows of B streams.

        Args:
            x: float32 [B, T, C], T a multiple of the rows of a frame.
            state: float32 [B, S]; it is not changed.
            position: int64 [B], of each stream's first frame in x.

        Returns:
            Rows, float32 [B, T', C'], which the next call overwrites, and the next state.
        """
        batch, count, _ = x.shape
        frames = count // int(self._layers[0, layer_table.RATE])
        self._resize(batch, frames)
        memory, at, size = (
            int(self._layers[0, each]) for each in (layer_table.MEMORY, layer_table.STATE, layer_table.SIZE)
        )
        first = self.buffers[0][: batch * (memory + count * size)].reshape(batch, -1)
        first[:, :memory] = state[:, at : at + memory]
        rows = first[:, memory:].reshape(batch, count, size)  # a view
        rows[..., : self._inputs] = x
        rows[..., self._inputs :] = 0
        if self._before != "zeros" and memory and not position.all():
            remembered = first[:, :memory].reshape(batch, -1, size)
            nearest = rows[:, :1] if self._before == "first" else rows[:, memory // size : 0 : -1]
            np.copyto(remembered, nearest, where=(position == 0)[:, None, None])
        cos, sin = self._rotary(position, frames)
        next_state = np.empty_like(state)
        count = len(self._layers) - 1
        thread_pool().run(
            run_chain,
            count,
            batch * frames * self.multiplications,
            self._layers,
            self._weights,
            self.parameters,
            self.buffers,
            self.residual,
            self.per_thread,
            frames,
            (position, cos, sin),
            (state, next_state),
        )
        rows, size = frames * self._layers[-1, layer_table.RATE], self._layers[-1, layer_table.SIZE]
        result = self.buffers[count % 2][: batch * rows * size].reshape(batch, rows, size)
        return result[..., : self._outputs], next_state

    def _rotary(self, position: Array, frames: int) -> tuple[Array, Array]:
        """cos and sin of the next frames, float32 [B, frames, D / 2]."""
        shape = len(position), frames, len(self._frequencies)
        cos, sin = np.empty(shape, np.float32), np.empty(shape, np.float32)
        rotary_tables(position, self._frequencies, cos, sin)
        return (in_bf16(cos), in_bf16(sin)) if self._rope_in_bf16 else (cos, sin)

    def _release(self) -> None:
        self.buffers = np.zeros(0, np.float32), np.zeros(0, np.float32)
        self.residual = np.zeros(0, np.float32)

    def _resize(self, batch: int, frames: int) -> None:
        """Make the memory fit at least so many streams and frames. It never shrinks."""
        threads = thread_pool().threads
        table = self._layers
        most = max(frames, self.usual_frames // batch)
        lengths = table[:, layer_table.MEMORY] + most * table[:, layer_table.RATE] * table[:, layer_table.SIZE]
        size = batch * int(lengths.max())
        if size > self.residual.size:
            self._release()  # first, else both would be there at once
            self.buffers = empty(size, np.float32), empty(size, np.float32)
            self.residual = empty(size, np.float32)
        keys, scores = 0, 0
        for layer in table[table[:, layer_table.KIND] == layer_table.ATTENTION]:
            dim = int(layer[layer_table.CHANNELS] // (layer[layer_table.HEADS] + 2 * layer[layer_table.KV_HEADS]))
            window, rows = int(layer[layer_table.WINDOW]), frames * int(layer[layer_table.RATE])
            keys, scores = max(keys, (max(0, window - 1) + rows) * dim), max(scores, window or rows)
        sums, transformed = BLOCK_TILES * TILE_ROWS * PANEL_OUTPUTS, 0
        for layer in table[table[:, layer_table.KIND] == layer_table.WINOGRAD]:
            groups = min(BLOCK_GROUPS, batch * frames * int(layer[layer_table.GROUPS]))
            sums = max(sums, winograd.PRODUCTS * groups * PANEL_OUTPUTS)
            rows = winograd.PRODUCTS * groups + winograd.INPUTS
            transformed = max(transformed, rows * int(layer[layer_table.SIZE]))
        sizes = sums, keys, keys, scores, transformed
        present = [array.shape[1] for array in self.per_thread]
        if not self.per_thread or threads > len(self.per_thread[0]) or any(map(operator.gt, sizes, present)):
            self.per_thread = Fixed(zeros((threads, each), np.float32) for each in sizes)
