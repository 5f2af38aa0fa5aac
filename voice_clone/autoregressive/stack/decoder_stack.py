"""A stack of decoder layers with a key-value cache: reads prompts, advances streams. torch's own way.

Shapes: B streams, T positions, S positions read, C hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from voice_clone.autoregressive.stack.config import StackConfig
from voice_clone.autoregressive.stack.decoder_layer import DecoderLayer, Turn
from voice_clone.autoregressive.stack.kv_cache import KVCache, Span, visible
from voice_clone.autoregressive.stack.line_cache import LineCache
from voice_clone.autoregressive.stack.own_lengths import OwnPieces, OwnSteps, Starts, reads_own_lengths
from voice_clone.autoregressive.stack.turns import fold, norm_tables, widen
from voice_clone.layers.attention import RMSNorm, additive_mask
from voice_clone.layers.graphs import CachedOnGpu


class Stack(Protocol):
    """What a talker or a code predictor runs on. It keeps no state: the key-value cache is the caller's."""

    @property
    def config(self) -> StackConfig:
        """What is told of it."""

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of hidden states."""

    @property
    def own_lengths(self) -> bool:
        """Whether each stream reads its own positions alone in `decode_first`, and in `prefill_together` with `begins`.
        Then `length` costs nothing.
        """

    @property
    def repeatable(self) -> bool:
        """Whether no bit of a result depends on how many positions, or which other streams, are in the same call: the
        same code then runs for all shapes.
        """

    def prepare(self, graphs: bool) -> None:
        """Settle what depends on the machine, before anything else is called; `graphs`: CUDA graphs will hold steps."""

    def new_cache(self, slots: int, max_length: int) -> KVCache:
        """A key-value cache of `slots` streams of at most `max_length` positions."""

    def new_frame_cache(self, slots: int, max_length: int) -> KVCache:
        """As `new_cache`, for extensions alone."""

    def prefill(self, cache: KVCache, slot: int, embeds: Tensor, offset: int = 0) -> Tensor:
        """Run T positions of one stream that follow `offset` earlier ones, already in the cache.

        Args:
            embeds: [T, C].

        Returns:
            [C], the normed hidden state of the last position.
        """

    def decode(
        self,
        cache: KVCache,
        slots: Sequence[int],
        positions: Sequence[int],
        embeds: Tensor,
        seen: Sequence[int] | None = None,
    ) -> Tensor:
        """Advance B streams by one position each. May overwrite `embeds`.

        Args:
            slots: B different slots; an ascending run of neighbours is read without a copy.
            positions: each stream's new position = the number of positions it has in the cache.
            embeds: [B, C].
            seen: how many positions each stream attends to, by itself; None: all attend together. A repeatable stack
                lets each stream attend by itself in any case.

        Returns:
            [B, C], the normed hidden states.
        """

    def decode_first(self, cache: KVCache, positions: Tensor, embeds: Tensor, length: int) -> Tensor:
        """Advance the streams of slots 0..B-1 by one position each; reads no value, so a CUDA graph can hold it.

        May overwrite `embeds`.

        Args:
            positions: int64 [B], each stream's new position; `length` or more where the result is not used.
            embeds: [B, C].
            length: the first `length` positions of the cache are read, as far as a stream's position allows.

        Returns:
            [B, C], the normed hidden states.
        """

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
        """Run N positions of R streams; reads no value, so a CUDA graph can hold it.

        Args:
            slots: int64 [R]; the same one may come again where nothing is its owner's.
            owner: int64 [N], the stream of each position, as its place in `slots`.
            positions: int64 [N]; the earlier ones of a stream are in the cache or come in the same call. `length` or
                more where the result is not used.
            embeds: [N, C].
            length: the first `length` positions of the cache are read, as far as a position allows.
            begins: int64 [R + 1], where each stream's positions begin, if they are consecutive and one stream follows
                the other; and the end, behind which is padding.

        Returns:
            [N, C], the normed hidden states.
        """

    def extend(self, cache: KVCache, x: Tensor, start: int) -> Tensor:
        """T positions from `start` on of the streams in slots 0..B-1: [B, T, C] -> [B, C], the last one's state.

        May overwrite x, whose numbers lie one after the other. The cache is a `new_frame_cache`.
        """


class DecoderStack(nn.Module):
    """Decoder layers and the norm behind them, in torch: a `Stack`."""

    repeatable = False
    own_lengths = False  # until `prepare`

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self._masks: dict[tuple[int, int, torch.dtype, torch.device], Tensor | None] = {}  # of `extend`
        self._starts: dict[tuple[int, int], Starts] = {}  # by streams, and positions of the cache
        self._norms: CachedOnGpu[Tensor] = CachedOnGpu()  # of queries and keys of all layers

    @property
    def like(self) -> Tensor:
        return self.norm.weight

    def prepare(self, graphs: bool) -> None:
        """Set `own_lengths`, if graphs are used and attention over a stream's own length can be had on this device."""
        self.own_lengths = graphs and reads_own_lengths(self.config, self.like)

    def new_cache(self, slots: int, max_length: int) -> KVCache:
        return KVCache(self.config, slots, max_length, self.like)

    def new_frame_cache(self, slots: int, max_length: int) -> KVCache:
        kind = LineCache if self.like.is_cuda else KVCache
        return kind(self.config, slots, max_length, self.like)

    @torch.inference_mode()
    def prefill(self, cache: KVCache, slot: int, embeds: Tensor, offset: int = 0) -> Tensor:
        length = embeds.shape[0]
        end = offset + length
        mask = visible(length, offset, self.config, embeds.device)
        row, positions = slice(slot, slot + 1), slice(offset, end)
        turns = self._turns(cache, positions)
        return self._run(embeds.clone()[None], turns, mask, cache, Span(row, positions, row, end))[0]

    @torch.inference_mode()
    def decode(
        self,
        cache: KVCache,
        slots: Sequence[int],
        positions: Sequence[int],
        embeds: Tensor,
        seen: Sequence[int] | None = None,
    ) -> Tensor:
        length = max(positions) + 1
        where = torch.tensor([slots, positions], device=embeds.device)  # one transfer for both
        mask = None
        if seen is None:
            mask = self._seen(torch.arange(length, device=embeds.device), where[1])[:, None, None]  # [B, 1, 1, S]
        neighbours = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        read = slice(slots[0], slots[0] + len(slots)) if neighbours else where[0]
        span = Span(where[0], where[1], read, length, seen)
        return self._run(embeds[:, None], self._turns(cache, where[1, :, None]), mask, cache, span)

    @torch.inference_mode()
    def decode_first(self, cache: KVCache, positions: Tensor, embeds: Tensor, length: int) -> Tensor:
        batch = embeds.shape[0]
        if self.own_lengths:
            return self._decode_alone(cache, positions, embeds, length)
        places = torch.arange(max(batch, length), device=embeds.device)
        mask = additive_mask(self._seen(places[:length], positions), embeds.dtype)[:, None, None]
        span = Span(places[:batch], positions, slice(0, batch), length)
        return self._run(embeds[:, None], self._turns(cache, positions[:, None]), mask, cache, span)

    def _decode_alone(self, cache: KVCache, positions: Tensor, embeds: Tensor, length: int) -> Tensor:
        """`decode_first`, each stream over its own length."""
        batch, most = embeds.shape[0], cache.keys.shape[3]
        if (batch, most) not in self._starts:
            self._starts[batch, most] = Starts.of(batch, self.config, most, embeds.device)
        own = OwnSteps.of(self._starts[batch, most], positions, length)
        span = Span(torch.arange(batch, device=embeds.device), positions, slice(0, batch), length, own=own)
        return self._run(embeds[:, None], self._turns(cache, positions[:, None]), None, cache, span)

    @torch.inference_mode()
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
        turns = self._turns(cache, positions[:, None])
        if self.own_lengths and begins is not None:
            own = OwnPieces.of(begins, slots, positions, cache.of_layer(0))
            span = Span(slots[owner], positions, slots, length, own=own)
            return self._run(embeds.clone()[:, None], turns, None, cache, span)
        heads = self.config.num_attention_heads // self.config.num_key_value_heads
        places = torch.arange(max(len(owner), length), device=embeds.device)
        mask = additive_mask(self._seen(places[:length], positions), embeds.dtype)
        mask = mask.repeat_interleave(heads, 0)  # [N * H/G, S]
        span = Span(slots[owner], positions, slots, length, owner=(owner, places[: len(owner)]))
        return self._run(embeds.clone()[:, None], turns, mask, cache, span)

    def extend(self, cache: KVCache, x: Tensor, start: int) -> Tensor:
        batch, length, _ = x.shape
        end = start + length
        positions = slice(start, end)
        span = Span(slice(0, batch), positions, slice(0, batch), end)
        masked = length > 1 or self.config.window is not None
        mask = self._visible(length, start, x) if masked else None
        return self._run(x, self._turns(cache, positions), mask, cache, span)

    def _seen(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Which keys [S] each stream's new position [B] sees: bool [B, S]."""
        seen = keys <= positions[:, None]
        if self.config.window is not None:
            seen &= keys > positions[:, None] - self.config.window
        return seen

    def _visible(self, length: int, start: int, like: Tensor) -> Tensor | None:
        """The mask `visible`, made once and additive, of the dtype and on the device of `like`."""
        key = length, start, like.dtype, like.device
        if key not in self._masks:
            seen = visible(length, start, self.config, like.device)
            self._masks[key] = None if seen is None else additive_mask(seen, like.dtype)
        return self._masks[key]

    def _turns(self, cache: KVCache, positions: Tensor | slice) -> list[Turn]:
        """What turns queries and keys at these positions, [B, T] or T, of each layer."""
        if not self.like.is_cuda:
            return [(cache.cos[positions], cache.sin[positions])] * len(self.layers)
        if not self.config.qk_norm:
            return [(widen(cache.turns[positions]),)] * len(self.layers)
        if isinstance(cache, LineCache):  # it is short: the tables of all its positions are kept
            folded = cache.folded.get(self.like, lambda: fold(cache.turns, self._norm_tables()))[:, positions]
        else:
            folded = fold(cache.turns[positions], self._norm_tables())
        return [(table,) for table in folded.unbind()]

    def _norm_tables(self) -> Tensor:
        """`norm_tables` of all layers, computed once."""
        layers = [layer.self_attn for layer in self.layers if isinstance(layer, DecoderLayer)]

        def compute() -> Tensor:
            queries, keys = ([getattr(each, name).weight for each in layers] for name in ("q_norm", "k_norm"))
            return norm_tables(self.config, queries, keys)

        return self._norms.get(self.like, compute)

    def _run(self, x: Tensor, turns: list[Turn], mask: Tensor | None, cache: KVCache, span: Span) -> Tensor:
        """x [B, T, C] -> hidden state of the last position [B, C]. Overwrites x."""
        for index, (layer, turn) in enumerate(zip(self.layers, turns, strict=True)):
            x = layer(x, turn, mask, cache, index, span)
        hidden: Tensor = self.norm(x[:, -1])
        return hidden
