"""perf/gpu's table of marks, and what a run that is cut short leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perf.on_gpu import marks
from perf.on_gpu.engines import SERVED
from perf.on_gpu.phases import Progress

pytestmark = pytest.mark.thorough

EQUAL = {"equal_before": 1.0}


def found() -> dict[str, Any]:
    def level(load: str, first: float, audio: float, in_time: float) -> dict[str, Any]:
        return {
            "load": load,
            "first_audio_s": {"p95": first},
            "audio_seconds_per_second": audio,
            "in_time": in_time,
        }

    return {
        "figures": {
            "fp32": {"equal": {"codes": 1.0}, "times": {}},
            "bf16": {"equal": {"codes": 0.99}, "times": {SERVED: {1: {"frame": {"p50": 0.0029}}}}},
        },
        "server": {
            "load": [
                level("1/s", 0.026, 8.0, 1.0),
                level("20/s", 0.0601, 160.0, 0.999),
                level("64 callers", 0.4, 399.0, 0.9),
            ],
            "minutes": {"growth": 0.002},
        },
        "codes": {"encoders": {"codes": EQUAL, "embedding": {"apart": 1e-6}}, "talkers": EQUAL},
    }


def test_met_and_missed(capsys: pytest.CaptureFixture[str]) -> None:
    judged = marks.of(found())
    assert [each["met"] for each in judged] == [True, True, True, False, False, True, True]
    assert [each["figure"] for each in judged][1] == pytest.approx(2.9)
    marks.show(judged)
    table = capsys.readouterr().out
    assert table.count("missed") == 2 and "not measured" not in table


def test_what_was_not_measured_is_neither() -> None:
    assert {each["met"] for each in marks.of({"figures": {}, "server": {}, "codes": {}})} == {None}


def test_one_flip_is_no_equality() -> None:
    other = found()
    other["codes"]["talkers"] = {"equal_before": 0.99}
    assert marks.of(other)[0] == {"mark": marks.MARKS[0].name, "figure": 99.0, "wanted": ">= 100", "met": False}


def test_a_run_that_is_cut_short_loses_no_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, figures = tmp_path / "figures.json", {"first": 0, "second": 0}
    progress = Progress(target, figures)
    progress.begin("first")
    figures["first"] = 1
    progress.begin("second")
    figures["second"] = 2  # and here it is killed
    kept = json.loads(target.read_text())
    assert kept["first"] == 1 and kept["second"] == 0 and "machine" in kept
    assert [line.split("] ")[1] for line in capsys.readouterr().err.splitlines()] == ["first", "second"]
    assert not list(tmp_path.glob("*.tmp"))
