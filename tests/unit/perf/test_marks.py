"""perf/marks: what the changes do to a sound, what is counted, and that a run goes on where it was."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from perf.bench import mark_figures, marks
from perf.bench.sound_changes import CHANGES
from voice_clone_server.demo import CLIP

pytestmark = pytest.mark.thorough

SPEEDS = {"5 % faster": 1.05, "5 % slower": 0.95}
LENGTHS = {"3 s of it": 3.0, "1 s of it": 1.0}
RATES = {"G.711": 8_000, "at 8 kHz": 8_000, "at 16 kHz": 16_000}


@pytest.fixture(scope="module")
def clip() -> NDArray[np.float32]:
    samples: NDArray[np.float32] = soundfile.read(CLIP, dtype="float32")[0]
    return samples[: 4 * mark_figures.RATE]


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_sound_is_still_the_sound(name: str, clip: NDArray[np.float32]) -> None:
    changed, rate = CHANGES[name](clip, mark_figures.RATE)
    assert changed.dtype == np.float32 and rate == RATES.get(name, mark_figures.RATE)
    expected = LENGTHS.get(name, 4.0 / SPEEDS.get(name, 1.0))
    assert abs(len(changed) / rate - expected) < 0.15, "codecs add some silence"
    if name != "none" and name not in LENGTHS:
        assert len(changed) != len(clip) or not np.array_equal(changed, clip)
    loudness = 20 * np.log10(np.sqrt(np.mean(changed**2)) / np.sqrt(np.mean(clip**2)))
    assert abs(loudness - {"20 dB softer": -20.0, "6 dB louder, clipped": 6.0}.get(name, 0.0)) < 4.0


def test_counting(monkeypatch: pytest.MonkeyPatch, clip: NDArray[np.float32]) -> None:
    some = {name: CHANGES[name] for name in ("none", "noise 10 dB below")}
    monkeypatch.setattr(mark_figures, "CHANGES", some)
    rows = [{"confidences": mark_figures.confidences(sound)} for sound in (clip, clip[: 2 * mark_figures.RATE])]
    found = marks.survival(rows)
    assert found.keys() == some.keys()
    assert found["none"]["detected"] == 1.0 and found["none"]["false_alarms"] == 0.0
    assert found["noise 10 dB below"]["mean"] < found["none"]["mean"]
    assert 0.0 <= found["none"]["highest"] < 0.3 <= found["none"]["lowest"]


def test_sums() -> None:
    rows = [{"confidences": {"none": [plain, marked]}} for plain, marked in ((0.0, 0.9), (0.4, 0.5), (0.1, 0.2))]
    assert marks.survival(rows)["none"] == pytest.approx(
        {"detected": 2 / 3, "lowest": 0.2, "mean": 1.6 / 3, "false_alarms": 1 / 3, "highest": 0.4}
    )
    words = [{"snr_db": 9.0, "words": {"open plain": [1, 16]}}, {"snr_db": 11.0, "words": {"open plain": [3, 14]}}]
    found = marks.heard(words)
    assert found["words"] == {"open plain": {"wrong": 4, "words": 30}}
    assert (found["snr_db"]["n"], found["snr_db"]["mean"]) == (2, 10.0)
    assert marks.survival([]) == {} and marks.heard([])["words"] == {}


def test_recordings_are_read_at_the_rate_of_the_speeches(tmp_path: Path) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros((16_000 * 12, 2), np.float32), 16_000, format="WAV")
    (tmp_path / "a.wav").write_bytes(file.getvalue())
    assert len(mark_figures.recording(tmp_path / "a.wav")) == mark_figures.MOST_SECONDS * mark_figures.RATE


def test_a_kept_speech_is_the_speech(tmp_path: Path) -> None:
    """Its file has every bit of it, and it is not spoken again."""
    first = mark_figures.speech(tmp_path, 3)
    clip = soundfile.read(mark_figures.VOICES[1], dtype="float32")[0]
    made = mark_figures._engine().say(mark_figures.text_of(3), clip, None, 3)
    np.testing.assert_array_equal(first, made)
    soundfile.write(tmp_path / "speech-3.wav", first[:100], mark_figures.RATE, format="WAV", subtype="FLOAT")
    np.testing.assert_array_equal(mark_figures.speech(tmp_path, 3), first[:100])


def given(folder: Path, clips: Path, minutes: float | None = None) -> argparse.Namespace:
    return argparse.Namespace(
        speeches=0, heard=0, clips=clips, jobs=1, keep=folder, minutes=minutes, output=folder / "all.json"
    )


def test_a_run_goes_on_where_it_was(tmp_path: Path, clip: NDArray[np.float32]) -> None:
    clips, kept = tmp_path / "clips", tmp_path / "kept"
    clips.mkdir()
    kept.mkdir()
    for name in ("a", "b"):
        soundfile.write(clips / f"{name}.wav", clip[: mark_figures.RATE // 2], mark_figures.RATE)
    assert marks.run(given(kept, clips, minutes=0.0), kept) == 1, "nothing is begun, and both are left"
    assert json.loads((kept / "all.json").read_text())["sounds"] == {}
    done = {"confidences": {name: [0.0, 1.0] for name in CHANGES}, "file": "a.wav", "commit": "before"}
    mark_figures.file_of(kept, "recording", 0).write_text(json.dumps(done))
    assert marks.run(given(kept, clips), kept) == 0
    found = json.loads((kept / "all.json").read_text())
    assert found["sounds"] == {"recordings": 2} and "before" in found["commits"] and len(found["commits"]) == 2
    assert json.loads(mark_figures.file_of(kept, "recording", 0).read_text()) == done, "it is not found again"
    assert found["survival"]["recordings"]["none"]["detected"] == 1.0
    assert not [path for path in kept.iterdir() if path.suffix not in (".json", ".wav")], "no half files"
