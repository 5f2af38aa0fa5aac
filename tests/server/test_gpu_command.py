"""perf/gpu with its servers, on the CPU: all of its code runs before it meets a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perf import gpu
from tests.support.factories import CheckpointFactory

KINDS = ("in context", "x-vector", "cold")


@pytest.mark.long
def test_the_whole_command(
    checkpoint_folder: CheckpointFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "figures.json"
    small = ["--precision", "fp32", "--frames", "6", "--runs", "1", "--batches", "1", "--no-peers"]
    given = ["--device", "cpu", "--checkpoint", str(checkpoint_folder("tiny", 0)), "--json", str(target)]
    monkeypatch.setattr("sys.argv", ["gpu", *given, *small, "--callers", "1", "3", "--rates", "2"])
    assert gpu.main() == 0
    found = json.loads(target.read_text())["server"]
    assert not found["failed"] and found["as_a_cpu"] == 0 and found["restored"] == "restored"
    assert {kind: of["n"] for kind, of in found["first_audio_ms"].items()} == {
        "in context": 1,
        "x-vector": 1,
        "cold": 1,
    }
    assert [level["load"] for level in found["load"]] == ["1 callers", "3 callers", "2/s"]
    assert set(found["left"][0]["errors"]) == {"cancelled"}
