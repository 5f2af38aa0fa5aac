"""The files that the default run leaves out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.thorough import ROOT, THOROUGH

SMALL = "tests/unit/tools/test_stopped_tools.py"


def collected(*arguments: str) -> str:
    """What pytest would run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.parametrize("begin", THOROUGH)
def test_each_entry_is_of_files(begin: str) -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert any(file.startswith(begin) for file in files)


def test_they_run_when_they_are_asked_for() -> None:
    folder = SMALL.rsplit("/", 1)[0]
    assert SMALL in collected(SMALL)
    assert SMALL in collected(folder, "-m", "thorough")
    assert SMALL not in collected(folder)
