"""A stack of decoder layers as one call of native code, on a CPU in fp32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor, nn

from voice_clone.autoregressive.stack.decoder_stack import DecoderLayer, DecoderStack
from voice_clone.autoregressive.stack.kv_cache import KVCache
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.native.arrays import Array, empty, zeros
from voice_clone.native.matrix.linear import Workspace
from voice_clone.native.matrix.weights import Packed, pack
from voice_clone.native.packed_file import Part, made
from voice_clone.native.thread_pool import leave_threads_to_native_code, thread_pool
from voice_clone.native.transformer.decoder_stack import LAYER_PHASES, decoder_stack
from voice_clone.settings import Precision

PROJECTIONS = 4  # of a layer: queries, keys and values; output; gate and up; down
SEQUENCES = 32  # that are read in one call of `together`

LoadLayer = Callable[[nn.Module, int], None]
"""Fills a layer, given its number."""


class StackWork(Workspace):
    """Scratch memory of a stack: that of its products, and of what is between them."""

    def __init__(self, size: int, widths: tuple[int, ...], *matrices: Packed, prompts: bool = False) -> None:
        super().__init__(*matrices, prompts=prompts)
        self._size = size
        self._widths = widths
        self._positions = 0
        self.common: tuple[Array, ...]

    def resize_to(self, rows: int, positions: int) -> None:
        if rows == self._rows and positions == self._positions:
            return
        self._rows, self._positions = 0, positions
        self.resize(rows)
        threads = thread_pool().threads
        normed = zeros((threads, rows, self._size), np.float32)
        self.per_thread = (*self.per_thread, normed, zeros((threads, positions), np.float32))
        self.common = tuple(zeros((rows, width), np.float32) for width in self._widths)


class NativeStack:
    """A `Stack`: decoder layers and the norm behind them.

    Args:
        stack: in torch. Its projections are packed one after the other and freed, so it cannot run any more.
        precision: of the projections.
        load: fills a layer, given its number, just before it is packed, if it is on the meta device still: so that no
            more than one layer is in memory unpacked. None: all layers are loaded.
        part: finds the packed projections, the norms and the biases; what is found is not loaded.

    Attributes:
        weights, vectors, eps: as `decoder_stack` takes them.
        work: memory that it computes frames with.
        multiplications: of a row.

    Raises:
        ValueError: the stack has an option that the native code does not know.
    """

    repeatable = True
    varlen = False  # all streams read their own in any case

    def __init__(
        self, stack: DecoderStack, precision: Precision, load: LoadLayer | None = None, part: Part = made
    ) -> None:
        config, norm = stack.config, stack.norm
        if config.rope == "interleaved" or config.window is not None:
            raise ValueError("native code knows no stacks with interleaved RoPE or a window")
        self.config = config
        layers = [layer for layer in stack.layers if isinstance(layer, DecoderLayer)]
        arrays = part(partial(_pack, layers, precision, load, config))
        stacked = [Packed(*arrays[place : place + 2]) for place in range(0, 2 * PROJECTIONS, 2)]
        self.multiplications = sum(packed.values.size for packed in stacked)  # of a row
        self.weights = tuple(packed.arrays for packed in stacked)
        *norms, biases = arrays[2 * PROJECTIONS :]
        self.vectors = (*norms, _rows([norm.weight])[0], biases)
        self.eps = np.float32(norm.eps)
        attention, inner = layers[0].self_attn, layers[0].mlp.inner
        queries, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
        self._like = norm.weight
        size = len(norm.weight)
        widths = queries + 2 * keys, queries, 2 * inner, inner, size
        self.work = self._prompt_work = StackWork(size, widths, *stacked)
        if stacked[0].prompt_type != stacked[0].activation_type:
            self._prompt_work = StackWork(size, widths, *stacked, prompts=True)
        self._scratch: dict[int, KVCache] = {}  # of `together`, by length
        stack.layers = nn.ModuleList()

    @property
    def like(self) -> Tensor:
        return self._like

    @property
    def nbytes(self) -> int:
        """Bytes of the packed projections."""
        return sum(array.nbytes for arrays in self.weights for array in arrays)

    @property
    def input_size(self) -> int:
        return self.config.hidden_size

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    def prepare(self, graphs: bool) -> None:
        """torch's threads would take the processors from native code."""
        leave_threads_to_native_code()

    def new_cache(self, slots: int, max_length: int) -> KVCache:
        return KVCache(self.config, slots, max_length, self.like)

    def new_frame_cache(self, slots: int, max_length: int) -> KVCache:
        return self.new_cache(slots, max_length)

    def prefill(self, cache: KVCache, slot: int, embeds: Tensor, offset: int = 0) -> Tensor:
        positions = torch.arange(offset, offset + embeds.shape[0])
        return self.run(embeds, cache, torch.full_like(positions, slot), positions, self._prompt_work)[-1]

    def decode(
        self,
        cache: KVCache,
        slots: Sequence[int],
        positions: Sequence[int],
        embeds: Tensor,
        seen: Sequence[int] | None = None,
    ) -> Tensor:
        return self.run(embeds, cache, torch.tensor(slots), torch.tensor(positions))

    def decode_first(self, cache: KVCache, positions: Tensor, embeds: Tensor, length: int) -> Tensor:
        return self.run(embeds, cache, torch.arange(embeds.shape[0]), positions)

    def prefill_together(
        self,
        cache: KVCache,
        slots: Tensor,
        owner: Tensor,
        positions: Tensor,
        embeds: Tensor,
        length: int,
        begins: Tensor | None = None,
    ) -> Tensor:
        return self.run(embeds, cache, slots[owner], positions, self._prompt_work)

    def extend(self, cache: KVCache, x: Tensor, start: int) -> Tensor:
        batch, length, _ = x.shape
        rows = self.run(x.flatten(0, 1), cache, *_places(batch, start, start + length))
        return rows.view(batch, length, -1)[:, -1]

    def together(self, x: Tensor) -> Tensor:
        """As of `DecoderStack`, a few sequences after the other. Rows are rounded as those of frames."""
        batch, length, _ = x.shape
        if length not in self._scratch:
            self._scratch[length] = self.new_cache(SEQUENCES, length)
        cache, done = self._scratch[length], []
        for some in torch.split(x, SEQUENCES):
            slots, positions = _places(len(some), 0, length)
            done.append(self.run(some.flatten(0, 1), cache, slots, positions, seen=torch.full_like(slots, length)))
        return torch.cat(done).view(batch, length, -1)

    def run(
        self,
        x: Tensor,
        cache: KVCache,
        slots: Tensor,
        positions: Tensor,
        work: StackWork | None = None,
        seen: Tensor | None = None,
    ) -> Tensor:
        """N new positions of any streams: x [N, C], slots and positions int64 [N] -> normed hidden states [N, C].

        A row sees its slot's positions up to its own, or the first `seen` [N] ones, also those that come in the same
        call. Rows are rounded as `work` has it, by default as those of frames.
        """
        work = work or self.work
        work.resize_to(x.shape[0], cache.cos.shape[0])
        out = empty(tuple(x.shape), np.float32)
        thread_pool().run(
            decoder_stack,
            LAYER_PHASES * len(self.vectors[0]),
            len(x) * self.multiplications,
            self.weights,
            self.vectors,
            self.eps,
            tuple(tensor.numpy() for tensor in (cache.keys, cache.values, cache.cos, cache.sin)),
            (slots.numpy(), positions.numpy(), (positions + 1 if seen is None else seen).numpy()),
            work.per_thread,
            work.common,
            np.array(x.numpy()),
            out,
        )
        return torch.from_numpy(out)


@lru_cache(maxsize=1024)
def _places(batch: int, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Slots and positions, int64 [B * T], of the rows from `start` to `end` of B streams."""
    return torch.arange(batch).repeat_interleave(end - start), torch.arange(start, end).repeat(batch)


def _pack(layers: list[DecoderLayer], precision: Precision, load: LoadLayer | None, config: StackConfig) -> list[Array]:
    """The projections of all layers, values and groups of each kind, the layers' norms, and their biases."""
    kinds: list[Packed] = []
    for index, layer in enumerate(layers):
        if load is not None:
            load(layer, index)
        attention, mlp = layer.self_attn, layer.mlp
        for kind, linear in enumerate((attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)):
            weight = _take_weight(linear)
            if index == 0:
                kinds.append(Packed.empty(len(layers), weight.shape, precision))
            pack(weight, precision, kinds[kind][index])
    projections = [array for packed in kinds for array in packed.arrays]
    before = [
        _rows([norm.weight for norm in norms])
        for norms in (
            [layer.input_layernorm for layer in layers],
            [layer.post_attention_layernorm for layer in layers],
        )
    ]
    return [*projections, *before, *_head_norms(layers, config.qk_norm), _biases(layers, config.qkv_bias)]


def _take_weight(linear: nn.Linear) -> Tensor:
    """Remove a projection's weight from it. With all of them in memory twice, loading would take the most memory."""
    weight = linear.weight.detach()
    del linear.weight
    return weight


def _head_norms(layers: list[DecoderLayer], qk_norm: bool) -> tuple[Array, Array]:
    """The weights of the norms of queries and of keys, [L, D] each; [L, 0] if there are none."""
    if not qk_norm:
        none = np.zeros((len(layers), 0), np.float32)
        return none, none
    queries, keys = ([getattr(layer.self_attn, name).weight for layer in layers] for name in ("q_norm", "k_norm"))
    return _rows(queries), _rows(keys)


def _biases(layers: list[DecoderLayer], qkv_bias: bool) -> Array:
    """Those of queries, keys and values, in the order of the projection's outputs [L, O]; [L, 0] if there are none."""
    if not qkv_bias:
        return np.zeros((len(layers), 0), np.float32)
    return _rows([layer.self_attn.qkv_proj.bias for layer in layers])


def _rows(weights: list[Tensor]) -> Array:
    array: Array = torch.stack([weight.detach().float() for weight in weights]).numpy()
    return array
