"""Muon takes the same steps as torch's, in any precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tools.demo_voice.muon import Muon, orthogonal

pytestmark = pytest.mark.thorough

SHAPES = ((48, 16), (16, 48), (16, 16))
RATE, DECAY, STEPS = 0.02, 0.1, 4


def trained(make: Any) -> list[Tensor]:
    """The matrices after `STEPS` steps down the same gradients."""
    torch.manual_seed(0)
    matrices = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = make(matrices)
    for _ in range(STEPS):
        for matrix in matrices:
            matrix.grad = torch.randn(matrix.shape)
        optimizer.step()
    return [matrix.detach() for matrix in matrices]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_steps_are_those_of_torch(dtype: torch.dtype) -> None:
    official = trained(
        lambda matrices: torch.optim.Muon(matrices, lr=RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
    )
    ours = trained(lambda matrices: Muon([{"params": matrices}], RATE, DECAY, dtype))
    step = RATE * 0.2 * max(SHAPES[0]) ** 0.5  # of a direction
    for one, other in zip(ours, official, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0.1 * step)  # torch's products are in bf16


@pytest.mark.parametrize("shape", SHAPES)
def test_all_directions_become_about_as_long(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    sizes = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
    assert sizes.min() > 0.6 and sizes.max() < 1.3


def test_a_matrix_without_gradient_stays() -> None:
    matrix = nn.Parameter(torch.ones(3, 2))
    Muon([{"params": [matrix]}], RATE, DECAY, torch.float32).step()
    assert torch.equal(matrix, torch.ones(3, 2))
