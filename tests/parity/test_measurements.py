"""The measurements of perf/ run, and what they say is whole; how fast anything was is no business of a test."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from perf import compare_official, stages
from tests.conftest import CheckpointFactory


@pytest.fixture(autouse=True)
def threads_stay() -> Any:
    """The scripts set torch's threads for their process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_compare_official(
    checkpoint_folder: CheckpointFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    how = ["--frames", "3", "--runs", "1", "--streams", "2", "--precision", "fp32", "--no-memory", "--threads", "1"]
    given = ["--checkpoint", str(checkpoint_folder("tiny", 0)), "--json", str(tmp_path / "out.json")]
    monkeypatch.setattr(sys, "argv", ["compare_official", *how, *given])
    compare_official.main()
    found = json.loads((tmp_path / "out.json").read_text())["figures"]["fp32"]
    assert found["equal_frames"] == 3
    assert found["deviation"]["talker_choices"] == 1.0
    assert all(0 < ratio["p50"] < math.inf for ratio in found["ratios"].values())
    assert set(found["ratios"]) == {"first_audio", "prefill", "frame", "code2wav", "total"}
    assert "| fp32 " in capsys.readouterr().out


def test_stages(
    checkpoint_folder: CheckpointFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    how = ["--runs", "1", "--batch", "2", "--precision", "fp32", "--threads", "1"]
    given = ["--checkpoint", str(checkpoint_folder("tiny", 0)), "-o", str(tmp_path / "out.json")]
    monkeypatch.setattr(sys, "argv", ["stages", *how, *given])
    stages.main()
    found = json.loads((tmp_path / "out.json").read_text())["stages"]
    for rows in found.values():
        for row in rows:
            assert row["ms"]["p50"] > 0 and row["bandwidth_ms"] > 0 and row["compute_ms"] > 0, row["stage"]
    names = [row["stage"] for rows in found.values() for row in rows]
    assert {"prefill, 128 positions", "code predictor, batch 2", "code2wav, 12 frames, batch 2"} <= set(names)
    assert "code predictor, batch 2" in capsys.readouterr().out
