"""Muon (Jordan et al. 2024): momentum, made orthogonal, as the step of a matrix.

torch has it, but always multiplies in bf16, which on a processor without instructions for that takes 27 times as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)  # of the authors: steepest at zero, so that few iterations do
RMS = 0.2  # of an entry of an update: about AdamW's, so that one learning rate fits both (Liu et al. 2025)


class Muon(torch.optim.Optimizer):
    """Trains matrices.

    Args:
        groups: of parameters, as torch's optimisers take them.
        lr: learning rate.
        weight_decay: a share of the learning rate.
        dtype: of the products.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, weight_decay: float, dtype: torch.dtype) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step down the gradients; `closure` is of torch's interface and is not called."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum"] = torch.zeros_like(matrix)
                momentum = state["momentum"].lerp_(matrix.grad, 1 - MOMENTUM)
                ahead = matrix.grad.lerp(momentum, MOMENTUM)  # Nesterov's
                update = orthogonal(ahead.to(self._dtype)).to(matrix.dtype)
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * RMS * max(matrix.shape) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """About the nearest matrix whose singular values are all one: they become 0.7 to 1.2. [R, C] -> [R, C]."""
    first, third, fifth = QUINTIC
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.T
        x = first * x + (third * square + fifth * square @ square) @ x
    found: Tensor = x.T if tall else x
    return found
