"""Rotary position embedding of decoder stacks in torch; voice_clone/position_encoding.py has its numbers.

On a CPU `apply_rotary` turns queries and keys by tables of cosines and sines. On a GPU their norm and RoPE are applied
in place on the output of the fused projection, in three kernels. A pair of dimensions (a, b) becomes
(cos a - sin b, sin a + cos b). So one product of all pairs with a table, and one sum, turn all heads at once. The table
also has the weights of the norms of queries and keys. All is fp32 until the sum is rounded. The heads are seen as
H/G + 1 rows of G heads each: a table has one entry for each row, the last one for the keys.

Shapes: T new positions, L layers, H query heads, G key-value heads, N = H/G + 1, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from voice_clone.autoregressive.stack.native_stack import rotary_arrays
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.layers.attention import normalise
from voice_clone.layers.graphs import to_device


def rotary_tables(config: StackConfig, positions: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of all positions, [positions, D], for `apply_rotary`; of the dtype and on the device of `like`."""
    cos, sin = map(torch.from_numpy, rotary_arrays(config, positions))
    both = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return both[0].to(like), both[1].to(like)


def rotation_tables(config: StackConfig, positions: int, device: torch.device) -> Tensor:
    """fp32 [positions, 2, 2, D/2]: how much of a pair's two parts (third dimension) is in the turned ones (second)."""
    cos, sin = map(torch.from_numpy, rotary_arrays(config, positions))
    return to_device(torch.stack([cos, -sin, sin, cos], dim=1).view(positions, 2, 2, -1), device)


def norm_tables(config: StackConfig, queries: Sequence[Tensor], keys: Sequence[Tensor]) -> Tensor:
    """The weights [D] of the norms of each layer as a factor of tables, fp32 [L, N, 1, 1, 2, D/2]."""
    rows = config.num_attention_heads // config.num_key_value_heads
    layers = [torch.stack([query] * rows + [key]) for query, key in zip(queries, keys, strict=True)]
    return _pairs(torch.stack(layers).float())[:, :, None, None]


def fold_norms(tables: Tensor, norms: Tensor) -> Tensor:
    """Tables [..., 2, 2, D/2] of positions, times `norm_tables`: those of each layer, [L, ..., N, 1, 2, 2, D/2]."""
    layers, *factor = norms.shape
    return for_all_heads(tables) * norms.view(layers, *[1] * (tables.dim() - 3), *factor)


def for_all_heads(tables: Tensor) -> Tensor:
    """Tables [..., 2, 2, D/2] for all heads: [..., 1, 1, 2, 2, D/2]."""
    return tables[..., None, None, :, :, :]


def norm_and_rotate_in_place(qkv: Tensor, table: Tensor, config: StackConfig, eps: float) -> None:
    """Norm and turn the queries and keys in qkv [B, T, H + 2 G, D] by a table [..., T, N or 1, 1, 2, 2, D/2].

    The values are normed with them, because the norm's kernel would copy a part; the result of that is not used.
    """
    groups = config.num_key_value_heads
    turned = config.num_attention_heads + groups
    normed = normalise(qkv, eps) if config.qk_norm else qkv
    parts, target = (
        _pairs(torch.unflatten(each[:, :, :turned], 2, (-1, groups))) for each in (normed, qkv)
    )  # [B, T, N, G, 2, D/2]
    products = parts.unsqueeze(-3) * table  # [B, T, N, G, 2, 2, D/2]
    torch.add(products[..., 0, :], products[..., 1, :], out=target)


def _pairs(x: Tensor) -> Tensor:
    """[..., D] -> [..., 2, D/2], a view: the dimensions that turn together, one below the other."""
    return torch.unflatten(x, -1, (2, -1))
