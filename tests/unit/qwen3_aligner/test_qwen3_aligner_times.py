"""Repaired times and units without a length. That repaired times are the official ones is a test of parity."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice_clone.qwen3_aligner.times import repaired, widened

STEP = 80
CLASSES = st.lists(st.integers(0, 400), max_size=60).map(lambda classes: [STEP * each for each in classes])


@given(CLASSES)
def test_repaired_times_never_fall_and_those_in_order_stay(marks: list[int]) -> None:
    times = repaired(marks)
    assert len(times) == len(marks) and times == sorted(times)
    assert repaired(times) == times
    assert repaired(sorted(marks)) == sorted(marks)


@given(CLASSES.filter(lambda marks: len(marks) % 2 == 0), st.floats(1, 40_000))
def test_units_are_in_order_within_the_sound_and_have_a_length(marks: list[int], total: float) -> None:
    times = repaired(marks)
    spans = widened(times, total, STEP)
    borders = [border for span in spans for border in span]
    assert borders == sorted(borders) and len(spans) == len(marks) // 2
    assert not borders or (borders[0] >= 0 and borders[-1] <= total)
    if any(time < total for time in times):
        assert all(start < end for start, end in spans)
    found = list(zip(times[::2], times[1::2], strict=True))
    if all(start < end <= total for start, end in found):
        assert spans == found


@pytest.mark.parametrize(
    ("times", "total", "expected"),
    [
        ([0, 80, 80, 80, 400, 480], 480, [(0, 80), (80, 160), (400, 480)]),  # a step of the gap
        ([0, 80, 80, 80, 80, 80, 160, 240], 240, [(0, 80), (80, 120), (120, 160), (160, 240)]),  # both share the gap
        ([0, 160, 160, 160, 160, 240], 240, [(0, 80), (80, 160), (160, 240)]),  # no gap: the unit before shares
        ([0, 0, 0, 160], 160, [(0, 80), (80, 160)]),  # none before: the one behind does
        ([0, 80, 80, 80], 100, [(0, 80), (80, 100)]),  # the last one, at most to the end
        ([0, 80, 160, 400], 200, [(0, 80), (160, 200)]),  # cut at the end of the sound
    ],
)
def test_units_without_a_length_share(times: list[int], total: float, expected: list[tuple[float, float]]) -> None:
    spans = widened(times, total, STEP)
    assert spans == expected
    assert all(first[1] <= second[0] for first, second in pairwise(spans))
