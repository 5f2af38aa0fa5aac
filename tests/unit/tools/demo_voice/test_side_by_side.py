"""Processes that work side by side end with the one that began them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import WAIT, until
from tools.demo_voice.side_by_side import each_done

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import sys
from pathlib import Path
from tests.unit.tools.demo_voice.test_side_by_side import note
from tools.demo_voice.side_by_side import each_done
if __name__ == "__main__":
    try:
        list(each_done(2, note, [(Path(sys.argv[1]), number, float(sys.argv[2])) for number in range(9)]))
    except KeyboardInterrupt:
        sys.exit(130)
"""


def note(folder: Path, number: int, seconds: float) -> None:
    """Tell who works on it, and work for some seconds, or until the folder has a file `end`."""
    (folder / f"{number}.begun").write_text(str(os.getpid()))
    at = time.monotonic() + seconds
    while time.monotonic() < at and not (folder / "end").exists():
        time.sleep(0.01)
    (folder / f"{number}.done").touch()


def test_all_is_done_in_order(tmp_path: Path) -> None:
    for number, _ in enumerate(each_done(2, note, [(tmp_path, number, 0.0) for number in range(5)])):
        assert (tmp_path / f"{number}.done").exists()
    assert len(list(tmp_path.glob("*.done"))) == 5
    assert len({path.read_text() for path in tmp_path.glob("*.begun")}) <= 2


def test_an_error_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(each_done(2, note, [(tmp_path / "missing", 0, 0.0)]))


@contextlib.contextmanager
def working(folder: Path, seconds: float) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A program with two processes that work, and their numbers."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(folder), str(seconds)]
    environment = os.environ | {"PYTHONPATH": "."}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as parent:
        try:
            until(lambda: len([path for path in folder.glob("*.begun") if path.read_text()]) == 2)
            yield parent, [int(path.read_text()) for path in folder.glob("*.begun")]
        finally:
            parent.kill()


def alive(process: int) -> bool:
    """Whether a process is there and no zombie."""
    status = Path(f"/proc/{process}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_they_end_with_a_parent_that_is_killed(tmp_path: Path, number: int) -> None:
    with working(tmp_path, 600) as (parent, workers):
        parent.send_signal(number)
        parent.wait(WAIT)
        until(lambda: not any(map(alive, workers)))
    assert not list(tmp_path.glob("*.done"))


def test_ctrl_c_ends_it_when_what_was_handed_out_is_done(tmp_path: Path) -> None:
    with working(tmp_path, 600) as (parent, workers):
        for process in (parent.pid, *workers):  # as a terminal does
            os.kill(process, signal.SIGINT)
        assert parent.stderr is not None
        assert parent.stderr.readline() == "Stopping after the shards that are begun ...\n"
        (tmp_path / "end").touch()
        assert parent.wait(WAIT) == 130 and parent.stderr.read() == ""
    assert len(list(tmp_path.glob("*.done"))) == len(list(tmp_path.glob("*.begun"))) == 2, "those at work, and no other"
