"""What a decoder stack is: its sizes and options, by which families differ, and what a talker asks of it.

Shapes: B streams, T positions, S positions read, I input size, C hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from voice_clone.array_kinds import Numbers


@dataclass(frozen=True)
class StackConfig:
    """A stack of pre-norm decoder layers with grouped-query attention and RoPE.

    Attributes:
        qk_norm: queries and keys have an RMSNorm each, over a head's dimensions.
        qkv_bias: the projections to queries, keys and values have biases.
        rope: which dimensions turn together: i and i + D/2 (`half`), or none.
        rope_factors: by which the angle of each pair of dimensions is divided [D/2]; None: 1.
        rope_in_bf16: the rotary tables are rounded to bf16 before they get the dtype of the weights.
        norm: RMSNorm, or a layer norm with a bias.
        mlp: SwiGLU (`gated`), or an activation without a gate: GELU in its form by the hyperbolic tangent.
        causal: a position sees no later ones. Without it, all positions that are read in one call see each other.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    qk_norm: bool = True
    qkv_bias: bool = False
    rope: Literal["half", "none"] = "half"
    rope_factors: tuple[float, ...] | None = None
    rope_in_bf16: bool = False
    norm: Literal["rms", "layer"] = "rms"
    mlp: Literal["gated", "gelu_tanh"] = "gated"
    causal: bool = True

    @classmethod
    def of(cls, sizes: Any, **options: Any) -> StackConfig:
        """The sizes of a family's configuration, whose attributes have the same names, and these options."""
        names = list(cls.__dataclass_fields__)[:8]
        return cls(**{name: getattr(sizes, name) for name in names}, **options)


class Stack(Protocol):
    """What a talker runs on. It keeps no state: the key-value cache is the caller's."""

    @property
    def config(self) -> StackConfig:
        """Its sizes and options. Those of the key-value cache are its numbers of layers, heads and dimensions."""

    @property
    def like(self) -> Numbers:
        """What hidden states are like: a tensor of their dtype and on their device, or an array."""

    @property
    def input_size(self) -> int:
        """I, numbers of a position that it reads."""

    @property
    def hidden_size(self) -> int:
        """C, numbers of what it makes of a position."""

    @property
    def varlen(self) -> bool:
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

    def new_cache(self, slots: int, max_length: int) -> Any:
        """A key-value cache of `slots` streams of at most `max_length` positions."""

    def prefill(self, cache: Any, slot: int, embeds: Numbers, offset: int = 0) -> Numbers:
        """Run T positions of one stream that follow `offset` earlier ones, already in the cache.

        Args:
            embeds: [T, I].

        Returns:
            [C], the normed hidden state of the last position.
        """

    def decode(
        self,
        cache: Any,
        slots: Sequence[int],
        positions: Sequence[int],
        embeds: Numbers,
        seen: Sequence[int] | None = None,
    ) -> Numbers:
        """Advance B streams by one position each. May overwrite `embeds`.

        Args:
            slots: B different slots; an ascending run of neighbours is read without a copy.
            positions: each stream's new position = the number of positions it has in the cache.
            embeds: [B, I].
            seen: how many positions each stream attends to, by itself; None: all attend together. A repeatable stack
                lets each stream attend by itself in any case.

        Returns:
            [B, C], the normed hidden states.
        """

    def decode_first(self, cache: Any, positions: Numbers, embeds: Numbers, length: int) -> Numbers:
        """Advance the streams of slots 0..B-1 by one position each; reads no value, so a CUDA graph can hold it.

        May overwrite `embeds`.

        Args:
            positions: int64 [B], each stream's new position; `length` or more where the result is not used.
            embeds: [B, I].
            length: the first `length` positions of the cache are read, as far as a stream's position allows.

        Returns:
            [B, C], the normed hidden states.
        """

    def prefill_together(
        self,
        cache: Any,
        slots: Numbers,
        owner: Numbers,
        positions: Numbers,
        embeds: Numbers,
        length: int,
        begins: Numbers | None = None,
    ) -> Numbers:
        """Run N positions of R streams; reads no value, so a CUDA graph can hold it.

        Args:
            slots: int64 [R]; the same one may come again where nothing is its owner's.
            owner: int64 [N], the stream of each position, as its place in `slots`.
            positions: int64 [N]; the earlier ones of a stream are in the cache or come in the same call. `length` or
                more where the result is not used.
            embeds: [N, I].
            length: the first `length` positions of the cache are read, as far as a position allows.
            begins: int64 [R + 1], where each stream's positions begin, if they are consecutive and one stream follows
                the other; and the end, behind which is padding.

        Returns:
            [N, C], the normed hidden states.
        """


class PredictorStack(Stack, Protocol):
    """What a code predictor runs on: the positions of one frame after the other, in a short cache. I is C."""

    def new_frame_cache(self, slots: int, max_length: int) -> Any:
        """As `new_cache`, for extensions alone."""

    def extend(self, cache: Any, x: Numbers, start: int) -> Numbers:
        """T positions from `start` on of the streams in slots 0..B-1: [B, T, C] -> [B, C], the last one's state.

        May overwrite x, whose numbers lie one after the other. The cache is a `new_frame_cache`.
        """
