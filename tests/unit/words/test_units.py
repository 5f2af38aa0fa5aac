"""The units of a text, and the times that are estimated for them."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from voice_clone_words.estimate import estimate, guess
from voice_clone_words.loudness import Loudness
from voice_clone_words.units import units_of

RATE = 16_000


def texts(text: str) -> list[str]:
    return [unit.text for unit in units_of(text)]


def sound(*parts: tuple[float, bool]) -> NDArray[np.float32]:
    """Noise and silence in turns: seconds, and whether it is loud."""
    noise = np.random.default_rng(0).normal(0, 0.1, RATE * 60).astype(np.float32)
    return np.concatenate([noise[: round(seconds * RATE)] * np.float32(loud) for seconds, loud in parts])


@given(st.text(max_size=200))
def test_units_are_spans_of_the_text_in_order(text: str) -> None:
    units = units_of(text)
    assert all(text[unit.start : unit.end] == unit.text == unit.text.strip() and unit.text for unit in units)
    assert all(a.end <= b.start for a, b in pairwise(units))
    outside = [text[a:b] for a, b in pairwise([0, *(place for unit in units for place in unit[1:]), len(text)])][::2]
    assert not any(each.strip() for each in outside), "all that is written is in a unit"
    assert bool(units) == bool(text.strip())


def test_what_a_unit_is() -> None:
    assert texts("Hello, “big” world!") == ["Hello,", "“big”", "world!"]
    assert texts("well — known & loved 🙂 ok") == ["well —", "known", "&", "loved 🙂", "ok"]
    assert texts("« Oui », dit-il.") == ["« Oui »,", "dit-il."]
    assert texts("你好，世界。Hi there") == ["你", "好，", "世", "界。", "Hi", "there"]
    assert texts("コーヒー「です」。") == ["コー", "ヒー", "「で", "す」。"]
    assert texts("🙂 🙂") == ["🙂 🙂"] and texts(" \n") == []


@given(st.text(max_size=120), st.lists(st.tuples(st.floats(0, 0.5), st.booleans()), max_size=12))
def test_an_estimate_covers_all_units(text: str, parts: list[tuple[float, bool]]) -> None:
    samples = sound((0.01, True), *parts)
    loudness = Loudness(RATE)
    loudness.feed(samples)
    units = units_of(text)
    found = estimate(units, loudness.silent(), loudness.step, len(samples))
    assert len(found) == len(units)
    edges = [edge for each in found for edge in each]
    assert edges == sorted(edges) and all(0 <= edge <= len(samples) for edge in edges)


def test_punctuation_is_where_the_pauses_are() -> None:
    samples = sound((0.2, False), (1.0, True), (0.3, False), (2.0, True), (0.1, False), (0.5, True), (0.4, False))
    loudness = Loudness(RATE)
    loudness.feed(samples)
    found = estimate(units_of("Wait, this is a longer part, now."), loudness.silent(), loudness.step, len(samples))
    seconds = [(start / RATE, end / RATE) for start, end in found]
    assert np.allclose([seconds[0], seconds[1], seconds[5], seconds[6]][0], (0.2, 1.2), atol=0.01)
    assert abs(seconds[1][0] - 1.5) < 0.01 and abs(seconds[5][1] - 3.5) < 0.01
    assert np.allclose(seconds[6], (3.6, 4.1), atol=0.01)


def test_a_long_text_of_many_pauses_is_estimated_at_once() -> None:
    """As much as the server's aligner takes. Minutes of it would hold up all others."""
    silent = np.arange(60_000) % 16 > 8
    began = time.monotonic()
    found = estimate(units_of("a, " * 6600), silent, 80, 60_000 * 80)
    assert time.monotonic() - began < 30
    assert len(found) == 6600 and [each[0] for each in found] == sorted(each[0] for each in found)


@given(st.lists(st.integers(0, 5000), max_size=20))
def test_loudness_does_not_depend_on_pieces(sizes: list[int]) -> None:
    samples = sound((1.0, True), (0.5, False))
    whole, pieces = Loudness(RATE), Loudness(RATE)
    whole.feed(samples)
    for piece in np.split(samples, np.cumsum(sizes)):
        pieces.feed(piece)
    assert np.array_equal(whole.silent(), pieces.silent())
    assert (whole.floor(), whole.loudest()) == (pieces.floor(), pieces.loudest())


def test_a_guess_goes_on_at_the_pace_so_far() -> None:
    found = guess(units_of("abcd efgh"), 1000, RATE, 100, 10.0)
    assert found == [(1000, 1000 + RATE // 2), (1000 + RATE // 2, 1000 + RATE)]
