"""Blending speaker embeddings, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import save_file
from voice_clone_client import InvalidArgument
from voice_clone_client.embedding import Method, blend, load, save

METHODS: tuple[Method, ...] = ("linear", "spherical")
VECTORS = arrays(np.float32, 8, elements=st.floats(-10, 10, width=32).filter(lambda value: abs(value) > 1e-3))


def angle(first: Any, second: Any) -> float:
    a, b = first.astype(float), second.astype(float)
    return float(np.arccos(np.clip(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)), -1, 1)))


@given(VECTORS, VECTORS)
def test_the_ends_are_exact(first: Any, second: Any) -> None:
    assume(angle(first, second) < 3.14)
    for method in METHODS:
        np.testing.assert_array_equal(blend(first, second, 0.0, method), first)
        np.testing.assert_array_equal(blend(first, second, 1.0, method), second)


@given(VECTORS, VECTORS, st.floats(0.01, 0.99))
def test_spherical_turns_evenly_and_keeps_the_length(first: Any, second: Any, weight: float) -> None:
    whole = angle(first, second)
    assume(whole < 3.1)
    between = blend(first, second, weight, "spherical")
    length = (1 - weight) * np.linalg.norm(first) + weight * np.linalg.norm(second)
    assert np.linalg.norm(between) == pytest.approx(length, rel=1e-4)
    assert angle(first, between) == pytest.approx(weight * whole, abs=2e-3)
    assert angle(between, second) == pytest.approx((1 - weight) * whole, abs=2e-3)


def test_linear_is_the_straight_way() -> None:
    np.testing.assert_array_equal(blend([1, 2], [3, -2], 0.25, "linear"), np.array([1.5, 1], np.float32))


def test_equal_directions_blend_their_lengths() -> None:
    first = np.random.default_rng(1).normal(size=64)
    for second in (first, 3 * first, first * (1 + 1e-9)):
        np.testing.assert_allclose(blend(first, second, 0.3), blend(first, second, 0.3, "linear"), rtol=1e-6)


@pytest.mark.parametrize(
    ("first", "second", "weight", "method", "message"),
    [
        ([1, 0], [1, 0, 0], 0.5, "linear", "2 and 3 values"),
        ([1, 0], [0, 1], 1.5, "linear", "0..1"),
        ([1, 0], [0, 1], float("nan"), "spherical", "0..1"),
        ([1, np.inf], [0, 1], 0.5, "linear", "finite"),
        ([[1, 0]], [0, 1], 0.5, "linear", "shape"),
        ([], [], 0.5, "linear", "shape"),
        ([1, 2], [-2, -4], 0.5, "spherical", "opposite"),
        ([1, 2], [0, 0], 0.5, "spherical", "zeros"),
        ([1, 2], [2, 1], 0.5, "cubic", "linear or spherical"),
    ],
)
def test_embeddings_that_cannot_be_blended(first: Any, second: Any, weight: float, method: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        blend(first, second, weight, method)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_files_keep_every_bit(tmp_path: Path, suffix: str) -> None:
    values = np.random.default_rng(2).normal(size=1024).astype(np.float32)
    save(tmp_path / f"a{suffix}", values)
    np.testing.assert_array_equal(load(tmp_path / f"a{suffix}"), values)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="must end with"):
        save(tmp_path / "a.bin", np.zeros(3, np.float32))
    for name in ("a.npy", "a.safetensors"):
        (tmp_path / name).write_bytes(b"neither")
        with pytest.raises(InvalidArgument, match=rf"is no \.{name[2:]} file"):
            load(tmp_path / name)
        (tmp_path / name).unlink()
        with pytest.raises(FileNotFoundError):
            load(tmp_path / name)
    np.savez(tmp_path / "many", np.zeros(3), np.ones(3))
    (tmp_path / "many.npz").rename(tmp_path / "many.npy")
    with pytest.raises(InvalidArgument, match=r"is no \.npy file"):
        load(tmp_path / "many.npy")
    (tmp_path / "zip.npy").write_bytes(b"PK\x03\x04, but no more of a zip")
    with pytest.raises(InvalidArgument, match=r"is no \.npy file"):
        load(tmp_path / "zip.npy")
    save_file({"other": np.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(InvalidArgument, match="no tensor 'speaker_embedding'"):
        load(tmp_path / "other.safetensors")
