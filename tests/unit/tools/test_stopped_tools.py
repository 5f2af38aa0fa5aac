"""Tools that write something: a signal ends them in one line, and nothing is there afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.factories import CheckpointFactory
from tools.new_folder import new_files, new_folder
from tools.triton_server import ROOT

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
TOOLS = {
    "build_repository": ["--engine", "onnx", "--checkpoint", "{checkpoint}", "--output", "{output}"],
    "export_onnx": ["--checkpoint", "{checkpoint}", "--output", "{output}"],
    "make_checkpoint": ["--family", "qwen3_tts", "--shape", "0.6b", "{output}"],
}


USUAL = (("make_checkpoint", signal.SIGINT), ("export_onnx", signal.SIGKILL), ("build_repository", signal.SIGTERM))


@pytest.mark.parametrize(
    ("tool", "number"),
    [
        pytest.param(tool, number, marks=[] if (tool, number) in USUAL else pytest.mark.long)
        for tool in TOOLS
        for number in SIGNALS
    ],
)
def test_a_stopped_tool_leaves_nothing(
    checkpoint_folder: CheckpointFactory, tmp_path: Path, tool: str, number: signal.Signals
) -> None:
    words = {"checkpoint": checkpoint_folder("tiny", 0), "output": tmp_path / "out" / "made"}
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-m", "tools.run", f"tools.{tool}", *(word.format(**words) for word in TOOLS[tool])]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not any((tmp_path / "out").rglob("*.*")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if process.poll() is not None:
            pytest.fail(f"it ended before it was stopped: {process.communicate()}")
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    while any((tmp_path / "out").iterdir()) and time.monotonic() < deadline:  # after SIGKILL the guard removes it
        time.sleep(0.05)
    assert not list((tmp_path / "out").iterdir())
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert error.count("\n") == 1 and "topped" in error, error


def test_a_signal_before_the_imports_are_done(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('x', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "tools.run", "slow"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == b"x\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[1] == b"Stopped.\n" and process.returncode == 130


def test_files_move_at_the_end_and_others_stay(tmp_path: Path) -> None:
    output = tmp_path / "onnx"
    output.mkdir()
    (output / "a").write_text("old")
    (output / "mine").write_text("mine")
    with pytest.raises(KeyError), new_files(output) as folder:
        (folder / "a").write_text("half")
        raise KeyError
    assert (output / "a").read_text() == "old"
    with new_files(output) as folder:
        (folder / "a").write_text("new")
    assert {path.name: path.read_text() for path in output.iterdir()} == {"a": "new", "mine": "mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["onnx"]


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "models"
    output.mkdir()
    (output / "old").touch()
    with new_folder(output) as folder:
        (folder / "new").touch()
    assert [path.name for path in output.iterdir()] == ["new"]
    rename = Path.rename

    def fails(source: Path, target: Path) -> Path:
        if target == output and not source.name.endswith("-old"):
            raise PermissionError
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(PermissionError), new_folder(output) as folder:
        (folder / "newer").touch()
    monkeypatch.undo()
    assert [path.name for path in output.iterdir()] == ["new"] and [path.name for path in tmp_path.iterdir()] == [
        "models"
    ]
    shutil.rmtree(output)
