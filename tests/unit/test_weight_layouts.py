"""Layouts of weights that several families' checkpoints have."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voice_clone.checkpoint import fold, halves_apart


def test_rows_apart_rotate_as_interleaved_ones() -> None:
    torch.manual_seed(0)
    heads, size = 2, 8
    query, key, x = torch.randn(heads * size, 3), torch.randn(heads * size, 3), torch.randn(3)
    angles = 5 * 10_000.0 ** -(torch.arange(size // 2) / (size // 2))  # at position 5

    def score(even: slice, odd: slice, queries: Tensor, keys: Tensor) -> Tensor:
        """Of a rotated query and a key at position 0, for each head."""
        q, k = (queries @ x).view(heads, size), (keys @ x).view(heads, size)
        first = q[:, even] * angles.cos() - q[:, odd] * angles.sin()
        second = q[:, even] * angles.sin() + q[:, odd] * angles.cos()
        return (first * k[:, even] + second * k[:, odd]).sum(1)

    interleaved = score(slice(0, None, 2), slice(1, None, 2), query, key)
    halves = slice(0, size // 2), slice(size // 2, None)
    half_split = score(*halves, halves_apart(query, size), halves_apart(key, size))
    torch.testing.assert_close(half_split, interleaved)
    assert not torch.allclose(score(*halves, query, key), interleaved)


def test_a_weight_normed_weight_is_torchs() -> None:
    torch.manual_seed(0)
    convolution = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 5, 7))
    length, direction = (tensor.detach() for tensor in convolution.parametrizations.weight.parameters())
    torch.testing.assert_close(fold(length, 2 * direction), convolution.weight.detach())
