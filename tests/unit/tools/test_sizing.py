"""Rows of diagnosis/sizing.py: those of docs/sizing.md and of the records; doctor prints this machine's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tools.doctor import main, released
from voice_clone_server import doctor
from voice_clone_server.diagnosis import sizing
from voice_clone_server.diagnosis.sizing import H200, ROWS, Measurement
from voice_clone_server.triton_server import ROOT

DOCUMENT = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
SPEED = [
    {"model": "Qwen3-TTS 0.6B", "precision": name, "real_time_factor": factor}
    for name, factor in (("int4", 0.8), ("fp32", 2.5))
]
ON_CPU = {"device": "cpu", "gpu": None, "threads": 2, "processor": "AMD EPYC, x86_64"}
ON_H200 = {**ON_CPU, "device": "cuda", "gpu": {"name": H200}}


def recorded(row: Measurement) -> float:
    """What its file says."""
    found: dict[str, Any] = json.loads((ROOT / "perf" / "records" / "results" / row.result).read_text(encoding="utf-8"))
    if row.through == "server":
        return float(found["levels"][{1: 0, 4: 1}[row.streams]]["audio_seconds_per_second"])
    if row.machine == H200:
        times = found["figures"][row.precision]["times"]["ours, as served"]
        return float(times[str(row.streams)]["audio_a_second"]["p50"])
    if row.result == "compare_pocket_official.json":
        return 1 / float(found["figures"][row.model.split()[-1].lower()][f"{row.precision}, {row.streams}"]["rtf"])
    figures = found["figures"][row.precision]
    one = 1 / figures["real_time"]["mean"]
    if row.streams == 1:
        return float(one)
    assert row.streams == figures["streams"]
    return float(one * figures["throughput"]["mean"])


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row.machine[:4]}-{row.model[-4:]}-{row.precision}-{row.streams}-{row.through}"
)
def test_a_row_is_what_was_measured(row: Measurement) -> None:
    assert row.audio == pytest.approx(recorded(row), rel=0.01)


def test_the_document_has_each_row_and_no_other() -> None:
    lines = [line for line in DOCUMENT.splitlines() if line.endswith(".json` |")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells == [
        [
            row.machine,
            row.model,
            row.precision,
            str(row.streams),
            f"{row.audio:g}",
            "yes" if row.in_time else "no",
            row.through,
            f"`{row.result}`",
        ]
        for row in ROWS
    ]


def test_a_processor_s_rows_are_what_was_measured_now() -> None:
    fast, slow = sizing.rows_here(ON_CPU, SPEED)
    assert [fast.audio, slow.audio] == pytest.approx([1.25, 0.4])
    assert [fast.in_time, slow.in_time] == [True, False]
    text = "\n".join(sizing.lines(ON_CPU, sizing.as_json([fast, slow])))
    assert "1.25   1.2 times as fast as heard; measured now" in text
    assert "0.40   too slow to be heard in time; measured now" in text


def test_a_gpu_s_rows_are_those_of_its_name() -> None:
    found = sizing.rows_here(ON_H200, SPEED)
    assert found == [row for row in ROWS if row.machine == H200] and {row.streams for row in found} == {1, 8, 64}
    text = "\n".join(sizing.lines(ON_H200, sizing.as_json(found)))
    assert "189.00   3.0 times as fast as heard; measured on such a card, engine" in text
    other = {**ON_H200, "gpu": {"name": "NVIDIA L4"}}
    assert sizing.rows_here(other, SPEED) == []
    assert "NVIDIA L4: not measured; perf/gpu measures it" in "\n".join(sizing.lines(other, []))


@pytest.mark.thorough
def test_doctor_has_the_rows(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOICE_CLONE_DEVICE", "cpu")
    assert main(["--no-speed"]) == 0
    text = capsys.readouterr().out
    assert "Sizing" in text and "not measured" in text and "docs/sizing.md" in text
    found = doctor.examine(None, measure=False, works=released)
    assert found["sizing"] == []
    monkeypatch.setattr(
        "voice_clone_server.diagnosis.machine.machine",
        lambda settings: {**found["machine"], **ON_H200, "gpu": {"name": H200, "memory_bytes": 141_000_000_000}},
    )
    found = doctor.examine(None, measure=False, works=released)
    assert [row["streams"] for row in found["sizing"]] == [1, 8, 64] and json.dumps(found)
    assert any("measured on such a card" in line for line in doctor.lines(found))
