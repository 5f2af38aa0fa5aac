"""Attention of one new position of each stream over its own length, by the flash attention that torch has for GPUs.

Under a mask every stream reads as many positions as the longest one. Here each reads its own alone, and there is no
mask to add. torch's operator takes the queries and the keys of a batch as rows of one tensor each, where each of the
batch begins, and how many keys it reads: `seqused_k` (FlashAttention-2, Dao 2023). Here each group of heads of each
stream is one of the batch. So the rows are those of the projection and of the cache, as they lie in memory, and
nothing is copied.

Shapes: B streams, H query heads, G key-value heads, N = H + 2 G, S positions of the cache, D head dimension.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from voice_clone.autoregressive.stack.config import StackConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Starts:
    """Where the rows of each group of each stream begin; int32 [B * G + 1], on the device.

    Attributes:
        queries: in the projection [B, N, D]; and the end. Behind a stream's last queries are its keys and values: they
            count as queries of its last group, and their results mean nothing.
        keys: in the cache [slots, 2 G, S, D] of streams in slots 0..B-1; the last number means nothing.
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


def attend_to_own(projected: Tensor, cache: Tensor, starts: Starts, used: Tensor) -> Tensor:
    """The projection [B, N, D] and the cache of its layer [slots, 2 G, S, D] -> [B, N, D], of which H are results.

    Args:
        used: int32 [B * G], how many positions each group of each stream reads.
    """
    _, twice, positions, dim = cache.shape
    rows, values = cache.view(-1, 1, dim), twice // 2 * positions  # values: how far they are behind the keys
    out: Tensor = torch.ops.aten._flash_attention_forward(
        projected.view(-1, 1, dim),
        rows[:-values],
        rows[values:],
        starts.queries,
        starts.keys,
        starts.longest,
        positions,
        0.0,
        False,
        False,
        seqused_k=used,
    )[0]
    return out.view(projected.shape)


def used_positions(positions: Tensor, groups: int, most: int) -> Tensor:
    """How many positions each group of each stream reads: int32 [B * G].

    Args:
        positions: int64 [B], of the newest; `most` or more where the result is not used: such a row reads few.
    """
    used = (positions % most + 1).to(torch.int32)
    return used[:, None].repeat(1, groups).view(-1)  # not expanded: of one stream that would be no copy


def reads_own_lengths(config: StackConfig, like: Tensor) -> bool:
    """Whether this GPU's flash attention can be had for a stack, and does what it should: it is tried.

    It takes half precision, and stacks without a window.
    """
    if not like.is_cuda or like.dtype == torch.float32 or config.window is not None or config.head_dim % 8:
        return False
    try:
        apart = [_tried(config, like, positions) for positions in ([0, 79, 32], [41])]
    except Exception as error:
        log.warning("attention over a stream's own length cannot be had, so all read as far as the longest: %s", error)
        return False
    if not all(each < 0.02 for each in apart):  # NaN is not; results are around 1, and bf16 rounds them by 0.004
        log.warning("attention over a stream's own length is off by %s, so all read as far as the longest", apart)
        return False
    return True


@torch.inference_mode()
def _tried(config: StackConfig, like: Tensor, newest: list[int]) -> float:
    """The largest difference from attention under a mask, of streams at these positions and random values."""
    heads, groups, dim, most = config.num_attention_heads, config.num_key_value_heads, config.head_dim, 80
    positions = torch.tensor(newest, device=like.device)
    batch, generator = len(positions), torch.Generator().manual_seed(0)
    projected = torch.randn(batch, heads + 2 * groups, dim, generator=generator).to(like)
    cache = torch.randn(batch + 1, 2 * groups, most, dim, generator=generator).to(like)
    starts = Starts.of(batch, config, most, like.device)
    got = attend_to_own(projected, cache, starts, used_positions(positions, groups, most))[:, :heads]
    mask = torch.arange(most, device=like.device) <= positions[:, None, None, None]
    keys, values = torch.split(cache[:batch], groups, dim=1)
    queries = projected[:, :heads].reshape(batch, groups, -1, dim)
    wanted = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    return float((got.float() - wanted.reshape(got.shape).float()).abs().max())
