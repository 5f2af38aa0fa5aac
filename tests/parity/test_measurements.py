"""The measurements of perf/ run, and their reports are complete; no test asserts how fast anything was."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from perf.bench import compare_rivals, memory, server_cost, stages
from perf.bench.official import compare
from tests.support.families.factories import CheckpointFactory
from tests.support.oracles.cosyvoice3 import source
from voice_clone_server.families.recognition import models_of
from voice_clone_server.triton_server import MODELS

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]


@pytest.fixture(autouse=True)
def threads_stay() -> Any:
    """The scripts set torch's threads for their process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


Measure = Callable[[ModuleType, str], tuple[dict[str, Any], str]]


@pytest.fixture
def measure(
    checkpoint_folder: CheckpointFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Measure:
    """Runs a script with these arguments on the tiny checkpoint; answers its JSON and what it printed."""

    def run(script: ModuleType, arguments: str) -> tuple[dict[str, Any], str]:
        file = tmp_path / "out.json"
        given = ["--checkpoint", str(checkpoint_folder("tiny", 0)), *arguments.split(), str(file)]
        monkeypatch.setattr(sys, "argv", [script.__name__, *given])
        script.main()
        return json.loads(file.read_text()), capsys.readouterr().out

    return run


HERE = [each for each in compare.FAMILIES if each != "cosyvoice3" or source()]
"""The families whose official code is here."""


@pytest.mark.parametrize("family", HERE)
def test_compare_official(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends with an error unless ours gives the official frames and samples in fp32."""
    file = tmp_path / "out.json"
    how = f"{family} --frames 6 --seconds 2 --runs 1 --streams 2 --precision fp32 int8 --output {file}"
    monkeypatch.setattr(sys, "argv", ["compare_official", *how.split()])
    assert compare.main() == 0
    written, printed = json.loads(file.read_text()), capsys.readouterr().out
    ours, official = written["figures"]["fp32"], written["figures"]["official float32"]
    assert ours["times float32"]["n"] == 1 and ours["total"]["p50"] >= ours["first audio"]["p50"] > 0
    assert all(0 < official[name]["p50"] < math.inf for name in ("frame", "decode", "total"))
    assert {"int8", "fp32 x 2", "int8 x 2"} <= written["figures"].keys()
    assert {"commit", "load", "date", "cpu"} <= written["machine"].keys()
    assert "| fp32 x 2 " in printed


@pytest.mark.long  # starts our engine four times
def test_compare_rivals(
    checkpoint_folder: CheckpointFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ours speaks in processes of its own, beside a busy one; what is not installed is named."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "checkpoint").symlink_to(checkpoint_folder("tiny", 0))
    how = f"--folder {tmp_path} --shape tiny --precision int8 --threads 1 --frames 3 --runs 1 --neighbour 1"
    file = tmp_path / "out.json"
    given = [*how.split(), "--engines", "vox", "qwentts", "--output", str(file)]
    monkeypatch.setattr(sys, "argv", ["compare_rivals", *given])
    assert compare_rivals.main() == 0
    written, printed = json.loads(file.read_text()), capsys.readouterr().out
    found = {each["engine"]: each for each in written["figures"]["1 threads"]}
    assert set(found) == {"ours", "ours, text along", "qwentts", "vox"}
    first, along = found["ours"], found["ours, text along"]
    assert first["positions"] > along["positions"] > 5, "the whole text is before the first frame, or comes along"
    for name in (*compare_rivals.MEASURES, "megabytes", "floor"):
        assert first[name]["n"] == along[name]["n"] == 1 and first[name]["p50"] > 0 and along[name]["p50"] > 0, name
    assert first["ready"]["p50"] > first["start"]["p50"] > first["whole"]["p50"]
    assert "not installed" in found["vox"]["reason"] and "- vox q8: not installed" in printed
    assert "beside 1 busy processes" in printed and written["neighbour"] == 1


def test_stages(measure: Measure) -> None:
    written, printed = measure(stages, "--runs 1 --batch 2 --precision fp32 --threads 1 -o")
    found = written["stages"]
    for rows in found.values():
        for row in rows:
            assert row["ms"]["p50"] > 0 and row["bandwidth_ms"] > 0 and row["compute_ms"] > 0, row["stage"]
    names = [row["stage"] for rows in found.values() for row in rows]
    assert {"prefill, 128 positions", "code predictor, batch 2", "code2wav, 12 frames, batch 2"} <= set(names)
    assert {"code2wav, 4 frames, in torch", "code2wav, a reference of 65 frames"} <= set(names)
    assert "code predictor, batch 2" in printed


@pytest.mark.long  # starts a server
def test_server_cost(measure: Measure) -> None:
    """It ends with an error unless the bare engine and the server make the same samples in the same chunks."""
    found, printed = measure(server_cost, "--frames 7 --runs 1 -o")
    assert found["empty models"]["p50"] > 0 and "models that do nothing" in printed
    assert found["chunks"] == 3
    for side in ("bare", "server"):
        assert set(found[side]) == {*server_cost.MEASURES, *server_cost.PARTS}
        parts = sum(found[side][part]["p50"] for part in server_cost.PARTS)
        assert parts == pytest.approx(found[side]["first chunk"]["p50"], abs=0.01)
    # All but the heartbeats; code2wav is also called for each chunk.
    requests = {model: spent["requests"] for model, spent in found["triton"].items()}
    assert requests["qwen3_tts"] == requests["qwen3_tts_prompt"] == requests["speaker_cache"] == 1
    assert requests["qwen3_tts_code2wav"] >= 3
    assert "| first chunk " in printed


@pytest.mark.long  # starts a server
def test_memory(checkpoint_folder: CheckpointFactory, measure: Measure) -> None:
    folder = checkpoint_folder("tiny", 0)
    written, printed = measure(memory, "--precision int8 --streams 2 --frames 2 -o")
    found = written["precisions"]["int8"]
    models = models_of(["qwen3_tts"], [MODELS])
    processes = {name for name, folder in models.items() if (folder / "1" / "model.py").exists()}
    assert set(found["processes"]) == processes | {memory.SERVER}
    for name, sizes in found["processes"].items():
        assert 0 < sizes["own"] < sizes["spoken"] < sizes["own"] + sizes["files"] <= 1.01 * sizes["peak"], name
    assert found["sum"] == pytest.approx(sum(each["spoken"] for each in found["processes"].values()))
    exact = memory.weights(folder, "fp32")
    assert found["weights"]["other networks"] == exact["other networks"] > 0
    assert found["weights"]["talker and code predictor"] < 0.3 * exact["talker and code predictor"]
    assert "| qwen3_tts_talker " in printed
