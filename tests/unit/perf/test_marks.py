"""perf/marks: what the changes do to a sound, and what is counted."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from perf.bench import marks
from perf.bench.sound_changes import CHANGES
from tools.demo import CLIP
from voice_clone.marking.detection import PerthDetector
from voice_clone.marking.marker import PerthMarker

SPEEDS = {"5 % faster": 1.05, "5 % slower": 0.95}
LENGTHS = {"3 s of it": 3.0, "1 s of it": 1.0}
RATES = {"G.711": 8_000, "at 8 kHz": 8_000, "at 16 kHz": 16_000}


@pytest.fixture(scope="module")
def clip() -> NDArray[np.float32]:
    samples: NDArray[np.float32] = soundfile.read(CLIP, dtype="float32")[0]
    return samples[: 4 * marks.RATE]


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_sound_is_still_the_sound(name: str, clip: NDArray[np.float32]) -> None:
    changed, rate = CHANGES[name](clip, marks.RATE)
    assert changed.dtype == np.float32 and rate == RATES.get(name, marks.RATE)
    expected = LENGTHS.get(name, 4.0 / SPEEDS.get(name, 1.0))
    assert abs(len(changed) / rate - expected) < 0.15, "codecs add some silence"
    if name != "none" and name not in LENGTHS:
        assert len(changed) != len(clip) or not np.array_equal(changed, clip)
    loudness = 20 * np.log10(np.sqrt(np.mean(changed**2)) / np.sqrt(np.mean(clip**2)))
    assert abs(loudness - {"20 dB softer": -20.0, "6 dB louder, clipped": 6.0}.get(name, 0.0)) < 4.0


def test_counting(monkeypatch: pytest.MonkeyPatch, clip: NDArray[np.float32]) -> None:
    some = {name: CHANGES[name] for name in ("none", "noise 10 dB below")}
    monkeypatch.setattr(marks, "CHANGES", some)
    found = marks.survival(PerthDetector(), PerthMarker(marks.RATE), [clip, clip[: 2 * marks.RATE]])
    assert found.keys() == some.keys()
    assert found["none"]["detected"] == 1.0 and found["none"]["false_alarms"] == 0.0
    assert found["noise 10 dB below"]["mean"] < found["none"]["mean"]
    assert 0.0 <= found["none"]["highest"] < 0.3 <= found["none"]["lowest"]


def test_recordings_are_read_at_the_rate_of_the_speeches(tmp_path: Path) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros((16_000 * 12, 2), np.float32), 16_000, format="WAV")
    (tmp_path / "a.wav").write_bytes(file.getvalue())
    [found] = marks.recordings(tmp_path)
    assert len(found) == marks.MOST_SECONDS * marks.RATE
