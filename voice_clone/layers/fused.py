"""Several projections of one input as one matrix product, several tables of embeddings as one.

In a state dict they keep the names that they have on disk; in memory their weights lie one under the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

KINDS = ("weight", "bias")


def fused_linear(
    owner: nn.Module, name: str, in_features: int, parts: Mapping[str, int], *, bias: bool = False
) -> nn.Linear:
    """A linear layer for the attribute `name` of `owner`: the projections `parts`, each with its number of outputs.

    `owner.state_dict()` has the parts' weights instead of the layer's own, and `owner.load_state_dict` takes them.
    """
    _keep_names(owner, name, parts)
    return nn.Linear(in_features, sum(parts.values()), bias=bias)


def fused_tables(owner: nn.Module, name: str, tables: int, rows: int, size: int) -> nn.Embedding:
    """An embedding for the attribute `name` of `owner`, as it were a list of so many tables; to be loaded."""
    _keep_names(owner, name, {f"{name}.{index}": rows for index in range(tables)})
    return empty_table(tables * rows, size)


def empty_table(rows: int, size: int) -> nn.Embedding:
    """An embedding to be loaded. Drawing values for it on the meta device would import 100 MB of torch's compiler."""
    table: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, size))  # type: ignore[no-untyped-call]
    return table


def _keep_names(owner: nn.Module, name: str, parts: Mapping[str, int]) -> None:
    """Let the attribute `name` be `parts` in a state dict, each with its number of rows."""

    def part(_: nn.Module, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        for kind in KINDS:
            fused = state.pop(f"{prefix}{name}.{kind}", None)
            if fused is not None:
                for own, tensor in zip(parts, torch.split(fused, list(parts.values())), strict=True):
                    state[f"{prefix}{own}.{kind}"] = tensor

    def join(_: nn.Module, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        for kind in KINDS:
            keys = [f"{prefix}{own}.{kind}" for own in parts]
            if all(key in state for key in keys):
                state[f"{prefix}{name}.{kind}"] = torch.cat([state.pop(key) for key in keys])

    hooks: Any = owner  # whose methods torch leaves without types
    hooks.register_state_dict_post_hook(part)
    hooks.register_load_state_dict_pre_hook(join)
