"""Which tests a run takes, and how its processes share them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
SMALL = "tests/unit/tools/test_stopped_tools.py"


def pytest_in(folder: Path, *arguments: str) -> str:
    """What pytest prints."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120).stdout


def test_thorough_ones_run_when_they_are_asked_for() -> None:
    folder = SMALL.rsplit("/", 1)[0]
    for chosen in ([SMALL], [folder, "-m", "thorough"], [SMALL, "-m", "thorough"], [folder, SMALL]):
        assert SMALL in pytest_in(ROOT, "--collect-only", "-q", *chosen), chosen
    assert SMALL not in pytest_in(ROOT, "--collect-only", "-q", folder)


def test_files_of_one_share_run_in_one_process(tmp_path: Path) -> None:
    mark = 'import pytest\npytestmark = pytest.mark.share("servers")\n'
    bodies = {
        "one": mark + "def test_one(): pass\ndef test_two(): pass",
        "other": mark + "def test_other(): pass",
        "alone": "import time\ndef test_alone(): time.sleep(1)\ndef test_beside(): pass",
    }
    for name, body in bodies.items():
        (tmp_path / f"test_{name}.py").write_text(body)
    plugin = ["-p", "tests.support.work_shares", "-p", "no:schemathesis", "--rootdir", str(tmp_path), "-c", "/dev/null"]
    output = pytest_in(ROOT, "-v", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", *plugin, str(tmp_path))
    process = {name: number for number, name in re.findall(r"\[(gw\d)\].* PASSED .*::test_(\w+)", output)}
    shared = {process[name] for name in ("one", "two", "other")}
    assert len(shared) == 1 and {process["alone"], process["beside"]} == {"gw0", "gw1"} - shared, output
