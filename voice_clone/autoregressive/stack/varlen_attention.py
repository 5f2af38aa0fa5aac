"""Attention of streams over their own lengths, by the flash attention that torch has for GPUs.

Under a mask every stream reads as many positions as the longest one. Here each reads its own alone, and there is no
mask to add. torch's operator takes the queries and the keys of a batch as rows of one tensor each, where each of the
batch begins, and how many keys it reads: `seqused_k` (FlashAttention-2, Dao 2023). The rows are those of the projection
and of the cache, as they lie in memory, so nothing is copied.

Shapes: B streams, H query heads, G key-value heads, N = H + 2 G, S positions of the cache, D head dimension. A cache is
that of a layer, [slots, 2 G, S, D], values behind keys.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from voice_clone.autoregressive.stack.protocol import StackConfig

TRIED_POSITIONS = 80  # of the caches in which it is tried
LARGEST_DIFFERENCE = 0.02  # results are around 1, and bf16 rounds them by 0.004

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Starts:
    """Where the rows of each group of heads of each stream begin; int32 [B * G + 1], on the device.

    Attributes:
        queries: in the projection [B, N, D]; and the end. Behind a stream's last queries are its keys and values: they
            count as queries of its last group, and their results mean nothing.
        keys: in the cache, of streams in slots 0..B-1; the last number means nothing.
        longest: the most queries of a group.
    """

    queries: Tensor
    keys: Tensor
    longest: int

    @classmethod
    def of(cls, batch: int, config: StackConfig, positions: int, device: torch.device) -> Starts:
        """`positions`: S."""
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        streams = torch.arange(batch, device=device)[:, None]
        each = torch.arange(groups, device=device)
        queries = streams * (heads + 2 * groups) + each * (heads // groups)
        keys = (streams * 2 * groups + each) * positions
        end = queries.new_full((1,), batch * (heads + 2 * groups))
        begins = [torch.cat([of_all.flatten(), end]).to(torch.int32) for of_all in (queries, keys)]
        return cls(begins[0], begins[1], heads // groups + 2 * groups)


@dataclass(frozen=True)
class VarlenDecode:
    """One new position of each stream. Each group of heads of each stream is one of the operator's batch: it would copy
    queries whose keys have fewer heads.

    Attributes:
        starts: of the groups.
        used: int32 [B * G], how many positions each of them reads.
    """

    starts: Starts
    used: Tensor

    @classmethod
    def of(cls, starts: Starts, positions: Tensor, most: int) -> VarlenDecode:
        """`positions` int64 [B], of the newest; `most` or more where the result is not used: such a row reads few."""
        groups = (len(starts.keys) - 1) // len(positions)
        used = (positions % most + 1).to(torch.int32)
        return cls(starts, used[:, None].repeat(1, groups).view(-1))  # not expanded: of one stream that is no copy

    def attend(self, projected: Tensor, cache: Tensor) -> Tensor:
        """[B, N, D] -> [B, N, D], of which the first H rows are results."""
        _, twice, positions, dim = cache.shape
        rows, values = cache.view(-1, 1, dim), twice // 2 * positions  # values: how far they are behind the keys
        starts = self.starts
        out = _flash(
            (projected.view(-1, 1, dim), rows[:-values], rows[values:]),
            (starts.queries, starts.keys, self.used),
            (starts.longest, positions),
            causal=False,
        )
        return out.view(projected.shape)


@dataclass(frozen=True)
class VarlenPrefill:
    """Consecutive positions of each of R streams, one stream after the other; each sees those up to itself.

    Attributes:
        begins: int32 [R + 1], where the positions of each begin; and the end. What follows has results of any values.
        keys: int32 [R + 1], where each stream's slot begins in the cache; the last number means nothing.
        used: int32 [R], each stream's positions up to its last new one.
    """

    begins: Tensor
    keys: Tensor
    used: Tensor

    @classmethod
    def of(cls, begins: Tensor, slots: Tensor, positions: Tensor, cache: Tensor) -> VarlenPrefill:
        """`begins` int64 [R + 1] as above, `slots` int64 [R], `positions` int64 of all; a cache of any layer."""
        _, twice, most, _ = cache.shape
        keys = F.pad(slots * (twice * most), (0, 1)).to(torch.int32)
        return cls(begins.to(torch.int32), keys, (positions[begins[1:] - 1] + 1).to(torch.int32))

    def attend(self, projected: Tensor, cache: Tensor) -> Tensor:
        """[positions, N, D] -> [positions, H, D]."""
        slots, twice, most, dim = cache.shape
        groups = twice // 2
        # A slot's positions are rows of G heads, each S rows apart. All but the last slot's other heads begin a row.
        size, strides = ((slots * twice - twice + 1) * most, groups, dim), (dim, most * dim, 1)
        keys = cache.as_strided(size, strides)
        values = cache.as_strided(size, strides, cache.storage_offset() + groups * most * dim)
        return _flash(
            (projected[:, :-twice], keys, values),
            (self.begins, self.keys, self.used),
            (len(projected), most),
            causal=True,
        )


VarlenAttention = VarlenDecode | VarlenPrefill


def _flash(
    rows: tuple[Tensor, Tensor, Tensor], batch: tuple[Tensor, Tensor, Tensor], most: tuple[int, int], causal: bool
) -> Tensor:
    """torch's operator.

    Args:
        rows: queries, keys, values [rows, heads, D].
        batch: int32, where the queries and the keys of each begin, and how many keys it reads.
        most: queries and keys of one.
        causal: the last query of each sees all keys that it reads, the one before all but the last, and so on.
    """
    queries, keys, used = batch
    out: Tensor = torch.ops.aten._flash_attention_forward(
        *rows, queries, keys, *most, 0.0, causal, False, seqused_k=used
    )[0]
    return out


def varlen_works(config: StackConfig, like: Tensor) -> bool:
    """Whether this GPU's flash attention, which takes half precision, can be had for a stack: it is tried."""
    if not like.is_cuda or like.dtype == torch.float32 or config.head_dim % 8:
        return False
    try:
        apart = [_try_steps(config, like, [0, TRIED_POSITIONS - 1, 32]), _try_steps(config, like, [41])]
        apart += [_try_pieces(config, like, [(0, 7), (30, 50)]), _try_pieces(config, like, [(0, TRIED_POSITIONS)])]
    except Exception as error:
        log.warning("attention over a stream's own length cannot be had, so all read as far as the longest: %s", error)
        return False
    if not all(each < LARGEST_DIFFERENCE for each in apart):  # NaN is not
        log.warning("attention over a stream's own length is off by %s, so all read as far as the longest", apart)
        return False
    return True


@torch.inference_mode()
def _try_steps(config: StackConfig, like: Tensor, newest: list[int]) -> float:
    """The largest difference from attention under a mask, of streams at these positions."""
    projected, cache = _random(config, like, len(newest), len(newest))
    starts = Starts.of(len(newest), config, TRIED_POSITIONS, like.device)
    positions = torch.tensor(newest, device=like.device)
    got = VarlenDecode.of(starts, positions, TRIED_POSITIONS).attend(projected, cache)
    wanted = [_masked(config, row[None], cache[slot], [newest[slot]]) for slot, row in enumerate(projected)]
    return _largest(got[:, : config.num_attention_heads], torch.cat(wanted))


@torch.inference_mode()
def _try_pieces(config: StackConfig, like: Tensor, pieces: list[tuple[int, int]]) -> float:
    """Likewise, of streams that read from one position up to another one; the last ones are in the first slots."""
    positions = [position for piece in pieces for position in range(*piece)]
    projected, cache = _random(config, like, len(positions) + 3, len(pieces))
    slots, ends = list(reversed(range(len(pieces)))), [0]
    for begin, end in pieces:
        ends.append(ends[-1] + end - begin)
    begins, places, numbers = (torch.tensor(each, device=like.device) for each in (ends, slots, [*positions, 0, 0, 0]))
    got = VarlenPrefill.of(begins, places, numbers, cache).attend(projected, cache)
    wanted = [
        _masked(config, projected[first:last], cache[slot], positions[first:last])
        for first, last, slot in zip(ends, ends[1:], slots, strict=False)
    ]
    return _largest(got[: len(positions)], torch.cat(wanted))


def _random(config: StackConfig, like: Tensor, rows: int, slots: int) -> tuple[Tensor, Tensor]:
    """A projection of so many rows, and a cache with a slot more than so many."""
    groups, generator = config.num_key_value_heads, torch.Generator().manual_seed(0)
    shapes = (rows, config.num_attention_heads + 2 * groups), (slots + 1, 2 * groups, TRIED_POSITIONS)
    projected, cache = (torch.randn(*shape, config.head_dim, generator=generator).to(like) for shape in shapes)
    return projected, cache


def _masked(config: StackConfig, projected: Tensor, slot: Tensor, positions: list[int]) -> Tensor:
    """Attention of a stream's rows [n, N, D] at these positions over its slot [2 G, S, D], by masks: [n, H, D]."""
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    places = torch.arange(slot.shape[1], device=slot.device)
    mask = places <= torch.tensor(positions, device=slot.device)[:, None]
    keys, values = (each.repeat_interleave(heads // groups, 0)[None] for each in torch.split(slot, groups))
    out = F.scaled_dot_product_attention(projected[None, :, :heads].transpose(1, 2), keys, values, attn_mask=mask)
    return out[0].transpose(0, 1)


def _largest(got: Tensor, wanted: Tensor) -> float:
    return float((got.float() - wanted.float()).abs().max())
