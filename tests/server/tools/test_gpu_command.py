"""perf/gpu with its servers, on the CPU: all of its code runs before it meets a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perf.bench.families import FAMILIES
from perf.on_gpu import command
from voice_clone_server.families.cards import cards

KINDS = ("in context", "cold", "x-vector")


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_command(
    family: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = tmp_path / "figures.json"
    small = ["--precision", "fp32", "--frames", "6", "--runs", "1", "--batches", "1", "--no-peers", "--minutes", "0.1"]
    given = ["--device", "cpu", "--family", family, "--shape", "tiny", "--output", str(target)]
    load = ["--callers", "1", "3", "--rates", "2", "--seconds", "2"]
    monkeypatch.setattr("sys.argv", ["gpu", *given, *small, *load])
    assert command.main() == 0
    whole = json.loads(target.read_text())
    found, pair = whole["server"], whole["codes"]
    assert not whole["failed"] and whole["cpu"]["passed"]
    embeddings = FAMILIES[family].embeddings
    kinds = KINDS if embeddings else KINDS[:2]
    assert [*whole["left_out"]] == ([] if embeddings else ["a voice by its embedding", "the marks"])
    assert found["restored"] == "restored"
    assert {kind: of["n"] for kind, of in found["first_audio_ms"].items()} == dict.fromkeys(kinds, 1)
    assert [level["load"] for level in found["load"]] == ["1 callers", "3 callers", "2/s"]
    assert set(found["left"][0]["errors"]) == {"cancelled"}
    assert len(found["minutes"]["samples"]) > 4 and found["minutes"]["growth"] < 0.5
    [card] = [each for each in cards() if each.name == family]
    equal = {"frames": 6, "first_difference": None, "equal_before": 1.0}
    assert pair["talkers"] == ({"apart": 0.0} if card.frame.dtype == "FP32" else equal) and pair["decoders"] == 0
    made = pair["encoders"]
    assert made and all(of.get("first_difference") is None and not of.get("apart") for of in made.values())
    assert embeddings == any("embedding" in name and of["apart"] == 0 for name, of in made.items())
    phases = [line.split("] ")[1] for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    assert phases[0] == "checkpoint" and phases[-1] == "end" and len(phases) == 14
