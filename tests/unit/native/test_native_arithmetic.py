"""Native arithmetic: sums are right, and their bits depend neither on addresses nor on the compiler's choices."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import numpy as np
import pytest
from numba import njit
from numba.core.dispatcher import Dispatcher

import voice_clone.native.kernels
from voice_clone.native.arrays import Array
from voice_clone.native.kernels import arithmetic

SIZES = (0, 1, 7, 8, 31, 32, 50, 100, 2048)


def _dot(a: Array, b: Array) -> Any:
    return arithmetic.dot(a, b)  # type: ignore[no-untyped-call]


def _total(a: Array) -> Any:
    return arithmetic.total(a)  # type: ignore[no-untyped-call]


def _total_from(a: Array, keys: Any, limit: np.int32) -> Any:
    return arithmetic.total_from(a, keys, limit)  # type: ignore[no-untyped-call]


def _fma(a: np.float32, b: np.float32, c: np.float32) -> Any:
    return arithmetic.fma(a, b, c)  # type: ignore[no-untyped-call]


def _elu(x: np.float32) -> Any:
    return arithmetic.elu(x)  # type: ignore[no-untyped-call]


dot, total, total_from, fma, elu = (njit(function) for function in (_dot, _total, _total_from, _fma, _elu))


@pytest.mark.parametrize("size", SIZES)
def test_sums(size: int) -> None:
    rng = np.random.default_rng(size)
    a, b = rng.standard_normal((2, size), np.float32)
    keys = rng.integers(-5, 5, size, dtype=np.int32)
    exact = a.astype(np.float64)
    allowed = 1e-6 * (np.abs(exact).sum() + 1)
    assert abs(dot(a, b) - exact @ b) <= allowed * 4
    assert abs(total(a) - exact.sum()) <= allowed
    for limit in (-9, 0, 2, 9):
        assert abs(total_from(a, keys, np.int32(limit)) - exact[keys >= limit].sum()) <= allowed


@pytest.mark.parametrize("size", SIZES)
def test_a_sum_is_the_same_wherever_its_numbers_lie(size: int) -> None:
    rng = np.random.default_rng(size)
    a, b = rng.standard_normal((2, size), np.float32)
    room = np.zeros(2 * size + 32, np.float32)
    for gap in range(9):
        here, there = room[gap : gap + size], room[2 * gap + size : 2 * gap + 2 * size]
        here[:], there[:] = a, b
        assert dot(here, there) == dot(a, b) and total(here) == total(a)


def test_a_product_and_a_sum_are_rounded_once() -> None:
    near = np.float32(1 + 2**-12)
    assert fma(near, near, np.float32(-1)) == np.float32(2**-11 + 2**-24)
    assert near * near - np.float32(1) == np.float32(2**-11)


def test_elu_is_exact_to_seven_digits() -> None:
    """Also near zero, where exp(x) - 1 would have lost most of them."""
    negative = -np.geomspace(1e-30, 100, 20_000).astype(np.float32)
    x = np.concatenate([negative, -negative, np.zeros(1, np.float32)])
    found = np.array([elu(each) for each in x], np.float64)
    wide = x.astype(np.float64)
    expected = np.where(wide > 0, wide, np.expm1(wide))
    assert (np.abs(found - expected) <= 3e-7 * np.abs(expected)).all()
    assert np.isnan(elu(np.float32(np.nan)))


def test_nothing_is_compiled_with_fast_arithmetic() -> None:
    """It would leave the last bits to the place of arrays in memory."""
    names = [
        module.name
        for module in pkgutil.walk_packages(voice_clone.native.kernels.__path__, "voice_clone.native.kernels.")
    ]
    modules = [importlib.import_module(name) for name in names]
    compiled = [each for module in modules for each in vars(module).values() if isinstance(each, Dispatcher)]
    assert len(compiled) > 20
    assert not [each.py_func.__name__ for each in compiled if each.targetoptions.get("fastmath")]
