"""A stack of decoder layers as one call of native code, on a CPU in fp32. It computes without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from voice_clone.array_kinds import Numbers, array_of, in_kind_of
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.stack.slot_memory import KeysAndValues, SlotMemory, pages_of_zeros
from voice_clone.mapped_weights import Read
from voice_clone.native.arrays import Array, empty, zeros
from voice_clone.native.kernel import Fixed, Kernel
from voice_clone.native.matrix.linear import Workspace
from voice_clone.native.matrix.rounding import in_bf16
from voice_clone.native.matrix.weights import Packed, as_float32, is_bf16, one_below_the_other, pack
from voice_clone.native.packed_file import Part, made
from voice_clone.native.sizes import LAYER_PHASES
from voice_clone.native.thread_pool import leave_threads_to_native_code, thread_pool
from voice_clone.position_encoding import rotary_tables
from voice_clone.settings import Precision

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("self_attn.o_proj",)
MLPS = {"gated": (("mlp.gate_proj", "mlp.up_proj"), ("mlp.down_proj",)), "gelu_tanh": (("mlp.fc1",), ("mlp.fc2",))}
NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
NORM_BIASES = ("input_layernorm.bias", "post_attention_layernorm.bias")
HEAD_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
TURNED = 1024  # positions of which a start makes the rotary tables; a longer stream makes those of all, in 10 ms
SEQUENCES = 32  # that are read in one call of `together`

decoder_stack = Kernel("transformer.decoder_stack.decoder_stack")
add_embeddings = Kernel("transformer.decoder_stack.add_embeddings")

Weights = Callable[[], Iterable[Mapping[str, Numbers]]]
"""The weights of each layer, by their names in a checkpoint; then those of the last norm, `weight` and `bias`."""


def rotary_arrays(config: StackConfig, positions: int) -> tuple[Array, Array]:
    """cos and sin of so many positions, float32 [positions, D / 2] each; 1 and 0 where nothing turns."""
    if config.rope == "none":
        shape = positions, config.head_dim // 2
        return np.ones(shape, np.float32), np.zeros(shape, np.float32)
    cos, sin = rotary_tables(positions, config.head_dim, config.rope_theta, config.rope_factors)
    return (in_bf16(cos), in_bf16(sin)) if config.rope_in_bf16 else (cos, sin)


def projections(config: StackConfig) -> tuple[tuple[str, ...], ...]:
    """Of a layer: four, each of them several matrices, one below the other."""
    return (*ATTENTION, *MLPS[config.mlp])


def layers_by_name(read: Read, prefix: str, config: StackConfig) -> Iterator[dict[str, Numbers]]:
    """The `Weights` of a checkpoint that has them under the names of Llama's and Qwen's, behind `prefix`."""
    size, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(NORMS, (size,))
    outputs = (queries, keys, keys), (size,), (inner,) * len(MLPS[config.mlp][0]), (size,)
    for names, rows, columns in zip(projections(config), outputs, (size, queries, size, inner), strict=True):
        shapes |= {f"{name}.weight": (count, columns) for name, count in zip(names, rows, strict=True)}
    if config.qk_norm:
        shapes |= dict.fromkeys(HEAD_NORMS, (dim,))
    if config.qkv_bias:
        shapes |= {f"{name}.bias": (count,) for name, count in zip(ATTENTION[0], outputs[0], strict=True)}
    last = ["weight"]
    if config.norm == "layer":
        shapes |= dict.fromkeys(NORM_BIASES, (size,))
        last.append("bias")
    for layer in range(config.num_hidden_layers):
        yield {name: read(f"{prefix}layers.{layer}.{name}", shape) for name, shape in shapes.items()}
    yield {name: read(f"{prefix}norm.{name}", (size,)) for name in last}


class NativeCache(SlotMemory):
    """Keys and values of all layers, zero at first: a `KeysAndValues` of arrays.

    A page of memory is taken when it is first written, because few streams are as long as a slot.

    Attribute `keys`, `values`: [layers, slots, G, max_length, D].
    """

    def __init__(self, config: StackConfig, slots: int, max_length: int) -> None:
        shape = config.num_hidden_layers, slots, config.num_key_value_heads, max_length, config.head_dim
        self._pages = pages = [pages_of_zeros(4 * int(np.prod(shape))) for _ in range(2)]
        self._parts = self.keys, self.values = [np.frombuffer(each, np.float32).reshape(shape) for each in pages]

    def part(self, layers: slice) -> NativeCache:
        """Some of the layers, in the same memory."""
        part = NativeCache.__new__(NativeCache)
        part._pages = [None, None]
        part._parts = part.keys, part.values = [each[layers] for each in self._parts]
        return part


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
        self.per_thread = Fixed((*self.per_thread, normed, zeros((threads, positions), np.float32)))
        self.common = Fixed(zeros((rows, width), np.float32) for width in self._widths)


class NativeStack:
    """A `Stack`: decoder layers and the norm behind them. It takes arrays or tensors, and returns the same.

    Args:
        config: sizes and options.
        precision: of the projections.
        weights: of the layers; they are packed one after the other, so that no more than one is in memory unpacked.
        part: finds the packed projections, the norms and the biases; what is found is not loaded.
        like: what hidden states are like, a tensor of fp32 or an array.

    Attributes:
        weights, vectors, eps: as `decoder_stack` takes them.
        work: memory that it computes frames with.
        multiplications: of a row.
    """

    repeatable = True
    varlen = False  # all streams read their own in any case

    def __init__(
        self,
        config: StackConfig,
        precision: Precision,
        weights: Weights,
        part: Part = made,
        like: Numbers | None = None,
    ) -> None:
        self.config = config
        arrays = part(lambda: _pack(weights(), precision, config))
        kinds = len(projections(config))
        stacked = [Packed(*arrays[place : place + 2]) for place in range(0, 2 * kinds, 2)]
        self.multiplications = sum(packed.values.size for packed in stacked)  # of a row
        self.weights = Fixed(Fixed(packed.arrays) for packed in stacked)
        self.vectors = Fixed(arrays[2 * kinds :])
        self.eps = np.float32(config.rms_norm_eps)
        self._like = np.zeros(0, np.float32) if like is None else like
        self._tables = lru_cache(maxsize=None)(partial(rotary_arrays, config))  # of so many positions
        queries = config.num_attention_heads * config.head_dim
        keys, inner, size = config.num_key_value_heads * config.head_dim, config.intermediate_size, config.hidden_size
        widths = queries + 2 * keys, queries, inner * len(MLPS[config.mlp][0]), inner, size
        self.work = self._prompt_work = StackWork(size, widths, *stacked)
        if stacked[0].prompt_type != stacked[0].activation_type:
            self._prompt_work = StackWork(size, widths, *stacked, prompts=True)
        self._scratch: dict[int, NativeCache] = {}  # of `together`, by length

    @property
    def like(self) -> Numbers:
        return self._like

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for arrays in self.weights for array in arrays)

    @property
    def input_size(self) -> int:
        return self.config.hidden_size

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    def widen(self) -> None:
        """Store fp32 projections with 32 bits for each number."""
        self.weights = Fixed(Fixed(Packed(*arrays).widened().arrays) for arrays in self.weights)

    def prepare(self, graphs: bool) -> None:
        """torch's threads would take the processors from native code."""
        leave_threads_to_native_code()

    def new_cache(self, slots: int, max_length: int) -> NativeCache:
        self._tables(min(max_length, TURNED))  # now, not with the first stream
        return NativeCache(self.config, slots, max_length)

    def new_frame_cache(self, slots: int, max_length: int) -> NativeCache:
        return self.new_cache(slots, max_length)

    def prefill(self, cache: KeysAndValues, slot: int, embeds: Numbers, offset: int = 0) -> Numbers:
        positions = np.arange(offset, offset + embeds.shape[0])
        return self.run(embeds, cache, np.full_like(positions, slot), positions, self._prompt_work)[-1]

    def decode(
        self,
        cache: KeysAndValues,
        slots: Sequence[int],
        positions: Sequence[int],
        embeds: Numbers,
        seen: Sequence[int] | None = None,
    ) -> Numbers:
        return self.run(embeds, cache, np.array(slots), np.array(positions))

    def decode_first(self, cache: KeysAndValues, positions: Numbers, embeds: Numbers, length: int) -> Numbers:
        return self.run(embeds, cache, np.arange(embeds.shape[0]), positions)

    def prefill_together(
        self,
        cache: KeysAndValues,
        slots: Numbers,
        owner: Numbers,
        positions: Numbers,
        embeds: Numbers,
        length: int,
        begins: Numbers | None = None,
    ) -> Numbers:
        return self.run(embeds, cache, slots[owner], positions, self._prompt_work)

    def extend(self, cache: KeysAndValues, x: Numbers, start: int) -> Numbers:
        batch, length, _ = x.shape
        rows = self.run(x.reshape(batch * length, -1), cache, *_places(batch, start, start + length))
        return rows.reshape(batch, length, -1)[:, -1]

    def together(self, x: Numbers) -> Numbers:
        """As of `DecoderStack`, a few sequences after the other. Rows are rounded as those of frames."""
        count, length, _ = x.shape
        if length not in self._scratch:
            self._scratch[length] = self.new_cache(SEQUENCES, length)
        cache, rows = self._scratch[length], array_of(x)
        out = np.empty(rows.shape, np.float32)
        for begin in range(0, count, SEQUENCES):
            some = rows[begin : begin + SEQUENCES]
            slots, positions = _places(len(some), 0, length)
            done = self.run(some.reshape(len(slots), -1), cache, slots, positions, seen=np.full_like(slots, length))
            out[begin : begin + SEQUENCES] = done.reshape(some.shape)
        return in_kind_of(x, out)

    def run(
        self,
        x: Numbers,
        cache: Any,
        slots: Numbers,
        positions: Numbers,
        work: StackWork | None = None,
        seen: Numbers | None = None,
    ) -> Numbers:
        """N new positions of any streams: x [N, C], slots and positions int64 [N] -> normed hidden states [N, C].

        A row sees its slot's positions up to its own, or the first `seen` [N] ones, also those that come in the same
        call. Rows are rounded as `work` has it, by default as those of frames. The cache may hold tensors, too.
        """
        work, places = work or self.work, array_of(positions)
        work.resize_to(x.shape[0], cache.keys.shape[3])
        out = empty(tuple(x.shape), np.float32)
        thread_pool().run(
            decoder_stack,
            LAYER_PHASES * len(self.vectors[0]),
            len(x) * self.multiplications,
            self.weights,
            self.vectors,
            self.eps,
            self.memory(cache, int(places.max(initial=0))),
            (array_of(slots), places, places + 1 if seen is None else array_of(seen)),
            work.per_thread,
            work.common,
            np.array(array_of(x)),
            out,
        )
        return in_kind_of(x, out)

    def memory(self, cache: KeysAndValues, last: int = 0) -> tuple[Array, ...]:
        """A cache and the rotary tables up to the position `last` as `decoder_stack` takes them."""
        length = int(cache.keys.shape[3])
        tables = self._tables(min(length, TURNED) if last < TURNED else length)
        return array_of(cache.keys), array_of(cache.values), *tables


@lru_cache(maxsize=1024)
def _places(batch: int, start: int, end: int) -> tuple[Array, Array]:
    """Slots and positions, int64 [B * T], of the rows from `start` to `end` of B streams."""
    return np.arange(batch).repeat(end - start), np.tile(np.arange(start, end), batch)


def _pack(weights: Iterable[Mapping[str, Numbers]], precision: Precision, config: StackConfig) -> list[Array]:
    """The projections of all layers, values and groups of each kind; the vectors of `decoder_stack`."""
    kinds: list[Packed] = []
    norms: dict[str, list[Array]] = {}
    names = (*NORMS, *(HEAD_NORMS if config.qk_norm else ()), *(NORM_BIASES if config.norm == "layer" else ()))
    biases, last, last_bias = [], np.zeros(0, np.float32), np.zeros(0, np.float32)
    halves = precision == "fp32"
    for index, layer in enumerate(weights):
        if index == config.num_hidden_layers:
            last = as_float32(layer["weight"])
            last_bias = as_float32(layer["bias"]) if config.norm == "layer" else last_bias
            break
        if halves and not all(is_bf16(layer[f"{part}.weight"]) for parts in projections(config) for part in parts):
            halves, kinds = False, [packed.widened() for packed in kinds]
        for kind, parts in enumerate(projections(config)):
            matrices = [layer[f"{part}.weight"] for part in parts]
            if index == 0:
                shape = sum(map(len, matrices)), matrices[0].shape[1]
                kinds.append(Packed.empty(config.num_hidden_layers, shape, precision, halves))
            _pack_below_each_other(matrices, precision, kinds[kind][index])
            del matrices
        for name in names:
            norms.setdefault(name, []).append(as_float32(layer[name]))
        if config.qkv_bias:
            biases.append(np.concatenate([as_float32(layer[f"{part}.bias"]) for part in ATTENTION[0]]))
        del layer  # before the next one is loaded
    none = np.zeros((config.num_hidden_layers, 0), np.float32)
    stacked = {name: np.stack(norms[name]) if name in norms else none for name in (*NORMS, *HEAD_NORMS, *NORM_BIASES)}
    return [
        *(array for packed in kinds for array in packed.arrays),
        *(stacked[name] for name in (*NORMS, *HEAD_NORMS)),
        last,
        np.stack(biases) if biases else none,
        *(stacked[name] for name in NORM_BIASES),
        last_bias,
    ]


def _pack_below_each_other(matrices: list[Numbers], precision: Precision, into: Packed) -> None:
    """Pack the rows of several matrices as those of one."""
    if precision == "fp32":  # each straight to its place
        begin = 0
        for matrix in matrices:
            pack(matrix, precision, into[begin : begin + len(matrix)])
            begin += len(matrix)
        return
    pack(one_below_the_other(matrices), precision, into)
