"""The parts of a native talker, of checkpoints that do not keep all tensors in one type."""

from __future__ import annotations

import numpy as np
import pytest

from voice_clone.autoregressive.native_parts import NativeParts
from voice_clone.native.matrix.rounding import bf16_bits
from voice_clone.native.matrix.weights import as_float32
from voice_clone.settings import PRECISIONS, Precision


@pytest.mark.parametrize("precision", PRECISIONS)
def test_linear_layers_of_different_types_are_one(precision: Precision) -> None:
    """Bits of bf16 beside float32 stand for the same numbers."""
    numbers = np.random.default_rng(0).standard_normal((2, 32, 128)).astype(np.float32)
    halves = bf16_bits(numbers[0])
    rows = np.random.default_rng(1).standard_normal((3, 128)).astype(np.float32)

    def product(first: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        found = {"q.weight": first, "k.weight": numbers[1]}
        linear = NativeParts("fp32", lambda name, shape: found[name]).linear(
            {"q": 32, "k": 32}, 128, bias=False, precision=precision
        )
        return linear(rows)

    assert np.array_equal(product(halves), product(as_float32(halves)))
    assert np.allclose(product(halves)[:, 32:], rows @ numbers[1].T, atol=8.0 if precision == "int4" else 0.5)
