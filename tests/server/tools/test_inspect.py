"""tools/inspect: the spans of a real speech, and the tree of its steps with their shapes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.families.factories import CheckpointFactory
from tests.support.families.voxtral import make_voxtral
from voice_clone_server.trace import read_trace
from voice_clone_server.triton_server import ROOT

pytestmark = pytest.mark.thorough

RECORDS = (
    '[{"id":1,"model_name":"qwen3_tts","model_version":1},'
    '{"id":1,"timestamps":[{"name":"REQUEST_START","ns":1000000}]},'
    '{"id":2,"model_name":"step","model_version":1,"parent_id":1},'
    '{"id":2,"timestamps":[{"name":"QUEUE_START","ns":2000000}]},'
    '{"id":2,"timestamps":[{"name":"COMPUTE_START","ns":3500000}]},'
    '{"id":2,"activity":"TENSOR_QUEUE_INPUT","tensor":{"name":"text","data":"say "{"id":3}" \\ \0",'
    '"shape":"1","dtype":"BYTES"}},'
    '{"id":2,"activity":"TENSOR_BACKEND_OUTPUT","tensor":{"name":"codes","data":"1,2","shape":"2,16","dtype":"INT32"}},'
    '{"id":1,"timestamps":[{"name":"REQUEST_END","ns":9000000}]}'
)


def test_records_are_found_though_tensors_are_not_escaped() -> None:
    root, step = sorted(read_trace(RECORDS), key=lambda span: span.id)
    assert (root.model, root.parent, root.began, root.ended) == ("qwen3_tts", None, 1_000_000, 9_000_000)
    assert (step.model, step.parent) == ("step", 1)
    assert step.between("QUEUE_START", "COMPUTE_START") == 1.5
    assert step.between("QUEUE_START", "COMPUTE_END") is None
    assert step.inputs == {"text": ["BYTES [1]"]} and step.outputs == {"codes": ["INT32 [2, 16]"]}


@pytest.mark.parametrize("cold", [False, True])
def test_the_tree_of_a_speech(checkpoint_folder: CheckpointFactory, cold: bool) -> None:
    command = [
        sys.executable,
        "-m",
        "voice_clone_server.inspect_speech",
        "--max-frames",
        "3",
        *(["--cold"] if cold else []),
    ]
    command += ["--checkpoint", str(checkpoint_folder("tiny", 0))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^ *([a-z0-9 ]+?) +at ([\d.]+) +(-?[\d.]+) ms", done.stdout, re.MULTILINE)
    spans = {name: (float(start), float(ms)) for name, start, ms in found}
    encoder = ["encoder"] if cold else []
    stages = ["prompt", *encoder, "queue", "prefill", "first frame", "code2wav", "the way"]
    assert list(spans) == [*stages, "first audio", "frames"]
    assert all(ms >= 0 for _, ms in spans.values()) and spans["the way"][1] > 0
    whole = spans["first audio"][1]
    assert sum(spans[name][1] for name in stages) == pytest.approx(whole, abs=0.1 * len(stages))  # one decimal each
    assert spans["frames"][0] == whole and spans["frames"][1] > 0
    steps = re.findall(r"(qwen3_tts_\w+) +at +[\d.]+ +queue +[\d.]+ +in +[\d.]+", done.stdout)
    assert steps[:2] == ["qwen3_tts_prompt", "qwen3_tts_talker"] and set(steps[2:]) == {"qwen3_tts_code2wav"}
    assert f'"cache": "{"miss" if cold else "hit"}"' in done.stdout
    flat = re.sub(r"[\s│]+", " ", done.stdout)  # as if no line had been wrapped
    assert "audio FP32 [1920]" in flat and "prompt BYTES [1]" in flat
    assert '"finish_reason"' in done.stdout


def test_the_tree_of_a_speech_in_a_voice_of_the_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "voice_clone_server.inspect_speech", "--max-frames", "2", "--voice", "casual_male"]
    command += ["--checkpoint", str(make_voxtral(tmp_path / "checkpoint"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "voxtral_talker" in done.stdout and '"cache": "preset"' in done.stdout
