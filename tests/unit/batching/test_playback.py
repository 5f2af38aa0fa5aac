"""What a listener hears of late chunks."""

from __future__ import annotations

import pytest

from voice_clone.batching.stream import Playback


def test_a_late_chunk_is_an_underrun_and_an_early_one_is_not() -> None:
    playback = Playback(0.08)
    playback.add(1, 10.0)
    playback.add(2, 10.05)  # in time: heard until 10.24
    assert (playback.underruns, playback.silence) == (0, 0.0)
    playback.add(1, 10.54)  # 0.3 s late
    playback.add(1, 10.62 + 0.2)
    assert playback.underruns == 2 and playback.silence == pytest.approx(0.5)
    playback.add(0, 99.0)  # the last chunk may be empty: it is not late
    assert playback.underruns == 2 and playback.silence == pytest.approx(0.5)
