"""Clicks at borders are found, and only they."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.judges.clicks import sharpest_border

pytestmark = pytest.mark.thorough

TIME = np.arange(24000) / 24000
SPEECH = (0.2 * np.sin(2 * np.pi * 150 * TIME) + 0.05 * np.sin(2 * np.pi * 2100 * TIME)).astype(np.float32)
BORDERS = [1920, 3840, 7681, 15361]


def test_a_smooth_wave_has_none() -> None:
    assert 0 < sharpest_border(SPEECH, BORDERS) <= 1.01
    noise = np.random.default_rng(1).normal(0, 0.1, 24000).astype(np.float32)
    assert sharpest_border(noise, BORDERS) <= 1.01
    assert sharpest_border(np.zeros(24000, np.float32), BORDERS) == 0
    assert sharpest_border(SPEECH, []) == 0


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("height", [0.05, -0.2])
def test_a_jump_is_found(border: int, height: float) -> None:
    clicking = SPEECH.copy()
    clicking[border:] += height
    assert sharpest_border(clicking, BORDERS) > 1.5
    assert sharpest_border(clicking, [border + 600]) <= 1.01  # not where it is not
    silent = np.where(np.arange(24000) < border, 0, height).astype(np.float32)
    assert sharpest_border(silent, BORDERS) > 100


def test_a_chunk_that_begins_in_silence_is_found() -> None:
    gap = SPEECH.copy()
    gap[7681 : 7681 + 240] *= np.linspace(0, 1, 240, dtype=np.float32)
    assert sharpest_border(gap, BORDERS) > 1
