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

from tests.support.families.factories import CheckpointFactory
from voice_clone_server.new_folder import new_folder
from voice_clone_server.server_log import ServerLog
from voice_clone_server.triton_server import ROOT

pytestmark = pytest.mark.thorough

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
TOOLS = {
    "build_repository": ["--native-encoders", "onnx", "--checkpoint", "{checkpoint}", "--output", "{output}"],
    "make_checkpoint": ["--family", "qwen3_tts", "--shape", "0.6b", "{output}"],
}


def module(tool: str) -> str:
    return f"{'tools' if (ROOT / 'tools' / f'{tool}.py').is_file() else 'voice_clone_server'}.{tool}"


USUAL = (("make_checkpoint", signal.SIGINT), ("make_checkpoint", signal.SIGKILL), ("build_repository", signal.SIGTERM))


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
    command = [sys.executable, "-m", "tools.run", module(tool), *(word.format(**words) for word in TOOLS[tool])]
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


PIPED = {
    "doctor": ["--no-speed"],
    "make_checkpoint": ["--shape", "tiny", "{output}"],
    "build_repository": ["--checkpoint", "{checkpoint}", "--output", "{output}"],
    "inspect_speech": ["--trace", "{trace}"],
}


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("tool", PIPED)
def test_a_reader_that_leaves_ends_a_tool_without_a_word(
    checkpoint_folder: CheckpointFactory, tmp_path: Path, tool: str, unbuffered: str
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(
        '[{"id":1,"model_name":"a","model_version":1},{"id":2,"model_name":"b","model_version":1,"parent_id":1}]'
    )
    words = {"checkpoint": checkpoint_folder("tiny", 0), "output": tmp_path / "made", "trace": trace}
    command = [sys.executable, "-m", "tools.run", module(tool), *(word.format(**words) for word in PIPED[tool])]
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, env=environment, timeout=120)
    os.close(writer)
    told = [b"", b"looking at the machine ...\n"]  # what it does, on stderr
    assert done.returncode == 128 + signal.SIGPIPE and done.stderr in told[: 2 if tool == "doctor" else 1]


UNUSABLE = {
    "build_repository": ["--checkpoint", "{checkpoint}", "--output", "{output}"],
    "make_checkpoint": ["--shape", "tiny", "{output}"],
    "convert_pickles": ["{checkpoint}"],
    "complete_checkpoint": ["{checkpoint}"],
    "inspect_speech": ["--trace", "{file}"],
    "demo": ["--max-frames", "0"],
}


@pytest.mark.parametrize("tool", UNUSABLE)
def test_what_cannot_be_done_is_said_in_one_line(
    checkpoint_folder: CheckpointFactory, tmp_path: Path, tool: str
) -> None:
    file = tmp_path / "file"
    file.touch()
    words = {"checkpoint": checkpoint_folder("tiny", 0), "output": "/proc/made", "file": file}
    command = [sys.executable, "-m", "tools.run", module(tool), *(word.format(**words) for word in UNUSABLE[tool])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    *usage, error = [line for line in done.stderr.splitlines() if not line.startswith(" ")]
    assert done.returncode in (1, 2) and not done.stdout and "Traceback" not in done.stderr
    assert error.startswith(f"tools/{tool.removesuffix('_speech')}: ")
    assert not usage or (len(usage) == 1 and usage[0].startswith("usage: "))


def test_a_broken_pipe_elsewhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text("def main():\n    raise BrokenPipeError('of a socket')\n")
    command = [sys.executable, "-m", "tools.run", "breaks"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30)
    assert done.returncode == 1 and "of a socket" in done.stderr


def test_the_log_of_a_server_goes_on_when_its_reader_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None: ...

    monkeypatch.setattr(sys, "stderr", Gone())
    log = ServerLog(verbose=True)
    with log.open("ab") as server:
        for number in range(3):
            server.write(f"line {number}\n".encode())
            server.flush()
    assert log.read_text() == "line 0\nline 1\nline 2"


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
