"""perf/gpu where neither a server nor its client nor another implementation is installed; when its time is up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perf.bench.families.fish_speech import FishSpeech
from perf.on_gpu import command
from perf.on_gpu.phases import Phases
from tests.support.families.factories import CheckpointFactory

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]
ABSENT = (
    *("voice_clone_client", "voice_clone_gateway", "tritonclient", "grpc", "google", "httpx", "starlette", "uvicorn"),
    *("qwen_tts", "faster_qwen3_tts", "transformers", "librosa", "torchaudio", "accelerate"),
    *("rich", "psutil", "matplotlib", "onnx", "onnxruntime", "psycopg", "av", "regex"),
)
ALONE = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

ABSENT = sys.argv.pop(1).split(",")
sys.meta_path.insert(0, Absent())

from perf.on_gpu import decoder

decoder.STREAMS = (1, 2)  # more take longer and show no more
runpy.run_module("perf.on_gpu.command", run_name="__main__", alter_sys=True)
"""
SMALL = ["--device", "cpu", "--frames", "3", "--runs", "1", "--batches", "1", "2", "--precision", "fp32"]


@pytest.mark.parametrize(
    ("family", "missing"),
    [
        (
            "qwen3_tts",
            {
                "qwen-tts": "ModuleNotFoundError: No module named 'transformers'",
                "faster-qwen3-tts": "ImportError: it needs a GPU",
            },
        ),
        ("fish_speech", FishSpeech.without_peers),
    ],
)
def test_without_server_client_and_rivals(family: str, missing: dict[str, str], tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    arguments = [*SMALL, "--timed", "fp32", "--family", family, "--shape", "tiny", "--output", str(target)]
    ran = subprocess.run(
        [sys.executable, "-c", ALONE, ",".join(ABSENT), "--phases", "engines", "cpu", "decoder", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    whole = json.loads(target.read_text())
    assert whole["figures"]["fp32"]["passed"] and whole["cpu"]["passed"] and whole["decoder"]["bf16"]
    assert whole["figures"]["fp32"]["missing"] == missing
    assert all(f"{name} is left out: {why}" in ran.stdout for name, why in missing.items())
    assert whole["figures"]["fp32"]["times"]["ours, as served"]["2"]["frame"]["n"] == 1
    assert bool(whole["marks"]) == ("the marks" not in whole["left_out"]) == (family == "qwen3_tts")
    assert "fp32 against a CPU: passed. 2 of 2 streams equal throughout" in ran.stdout


def test_what_would_begin_too_late_is_left_out(
    checkpoint_folder: CheckpointFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = tmp_path / "figures.json"
    arguments = ["--checkpoint", str(checkpoint_folder("tiny", 0)), "--output", str(target), "--within", "0"]
    monkeypatch.setattr("sys.argv", ["gpu", *SMALL, *arguments])
    assert command.main() == 0
    whole = json.loads(target.read_text())
    names = ["engines in fp32", "engines on the device and on the CPU", "decoder at other precisions"]
    last = ["the server starts", "codes, of servers on the device and on the CPU"]
    assert [*whole["left_out"]] == [*names, *last]
    assert not whole["figures"] and not whole["server"] and not whole["failed"]
    table = capsys.readouterr().out
    assert all(name in table for name in names) and table.count("; 0 were given") == 5


def test_what_was_measured_is_kept_when_the_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    target = tmp_path / "figures.json"
    phases = Phases(target, found := {"first": 0}, 480.0)
    assert phases.begins("first")
    found["first"] = 1
    clock[0] += 479
    assert phases.begins("second")
    assert json.loads(target.read_text())["first"] == 1
    clock[0] += 1
    assert not phases.begins("third") and not phases.begins("fourth")
    assert [*json.loads(target.read_text())["left_out"].items()] == [
        ("third", "480 s had passed; 480 were given"),
        ("fourth", "480 s had passed; 480 were given"),
    ]
    assert [*tmp_path.iterdir()] == [target]


def test_a_kill_while_it_is_written_leaves_the_file_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "figures.json"
    phases = Phases(target, found := {"first": 1}, None)
    phases.keep()
    found["second"] = 2

    def killed(path: Path, text: str, **options: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        phases.keep()
    assert json.loads(target.read_text())["first"] == 1
