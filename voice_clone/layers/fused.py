"""Several projections of one input fused into one linear layer, and several embedding tables fused into one.

In memory the weights of the parts are one tensor. In a state dict each part has the name that a checkpoint gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

PARAMETERS = ("weight", "bias")


def fused_linear(
    owner: nn.Module, name: str, in_features: int, parts: Mapping[str, int], *, bias: bool = False
) -> nn.Linear:
    """A linear layer that fuses several projections, for the attribute `name` of `owner`.

    `owner.state_dict()` contains the weights of the parts instead of the fused weight, and `owner.load_state_dict`
    expects them.

    Args:
        owner: the module that holds the layer.
        name: of its attribute.
        in_features: of all projections.
        parts: the names of the projections and their numbers of outputs.
        bias: whether the projections have biases.
    """
    _keep_names(owner, name, parts)
    return nn.Linear(in_features, sum(parts.values()), bias=bias)


def fused_tables(owner: nn.Module, name: str, tables: int, rows: int, size: int) -> nn.Embedding:
    """An embedding that fuses `tables` tables of `rows` rows each, for the attribute `name` of `owner`.

    In a state dict it is a list of tables. Its values are undefined until a state dict is loaded.
    """
    _keep_names(owner, name, {f"{name}.{index}": rows for index in range(tables)})
    return empty_table(tables * rows, size)


def empty_table(rows: int, size: int) -> nn.Embedding:
    """An embedding whose values are undefined until a state dict is loaded.

    `nn.Embedding(rows, size)` draws values, and on the meta device that imports 100 MB of torch's compiler.
    """
    table: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, size))  # type: ignore[no-untyped-call]
    return table


def _keep_names(owner: nn.Module, name: str, parts: Mapping[str, int]) -> None:
    """Split the attribute `name` into `parts`, each with its number of rows, in the state dicts of `owner`."""

    def split(_: nn.Module, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        for kind in PARAMETERS:
            fused = state.pop(f"{prefix}{name}.{kind}", None)
            if fused is not None:
                for own, tensor in zip(parts, torch.split(fused, list(parts.values())), strict=True):
                    state[f"{prefix}{own}.{kind}"] = tensor

    def join(_: nn.Module, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        for kind in PARAMETERS:
            keys = [f"{prefix}{own}.{kind}" for own in parts]
            if all(key in state for key in keys):
                state[f"{prefix}{name}.{kind}"] = torch.cat([state.pop(key) for key in keys])

    hooks: Any = owner  # torch has no types for these methods
    hooks.register_state_dict_post_hook(split)
    hooks.register_load_state_dict_pre_hook(join)
