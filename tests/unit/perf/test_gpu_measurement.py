"""perf/gpu: it runs as a whole without a GPU, says when there is none, and does not call equal what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from perf import gpu
from tests.support.factories import CheckpointFactory
from voice_clone.autoregressive.stack.native_stack import NativeStack

SHORT = ["--frames", "3", "--runs", "1", "--batches", "1", "2", "--no-peers", "--no-server"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["gpu", *arguments])
    return gpu.main()


def test_on_a_cpu(checkpoint_folder: CheckpointFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "figures.json"
    arguments = ["--device", "cpu", "--checkpoint", str(checkpoint_folder("tiny", 0)), "--json", str(target)]
    assert run(monkeypatch, *arguments, *SHORT) == 0
    figures = json.loads(target.read_text())["figures"]
    assert set(figures) == {"fp32", "bf16"}
    for of in figures.values():
        assert of["equal"]["codes"] == 1.0
        assert {name: set(streams) for name, streams in of["times"].items()} == {
            "ours, eager": {"1", "2"},
            "ours, graphs": {"1", "2"},
        }


def test_a_difference_does_not_pass(
    checkpoint_folder: CheckpointFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = NativeStack.decode_first

    def wrong(*args: Any) -> torch.Tensor:
        return 1.1 * exact(*args)

    monkeypatch.setattr(NativeStack, "decode_first", wrong)
    folder = str(checkpoint_folder("tiny", 0))
    assert run(monkeypatch, "--device", "cpu", "--checkpoint", folder, "--precision", "fp32", *SHORT) == 1
    assert "fp32: FAILED" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
