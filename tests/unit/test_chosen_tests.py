"""Which tests a run takes, and how its processes share them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
SMALL = "tests/unit/native/test_instructions.py"


def pytest_in(folder: Path, *arguments: str) -> str:
    """What pytest prints."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120).stdout


def with_plugin(name: str, folder: Path) -> list[str]:
    """Options for tests in a folder of their own, with a plugin of ours alone."""
    return ["-p", f"tests.support.{name}", "-p", "no:schemathesis", "--rootdir", str(folder), "-c", "/dev/null"]


def test_thorough_ones_run_when_they_are_asked_for() -> None:
    folder = SMALL.rsplit("/", 1)[0]
    for chosen in ([SMALL], [folder, "-m", "thorough"], [SMALL, "-m", "thorough"], [folder, SMALL]):
        assert SMALL in pytest_in(ROOT, "--collect-only", "-q", *chosen), chosen
    assert SMALL not in pytest_in(ROOT, "--collect-only", "-q", folder)


MARKS = {
    "one": "pytestmark = pytest.mark.thorough",
    "several": 'pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]',
    "lines": "pytestmark = [\n    pytest.mark.thorough,\n]",
    "long": "pytestmark = pytest.mark.long",
}


@pytest.mark.parametrize("name", MARKS)
def test_a_file_whose_tests_a_run_leaves_out_is_not_imported(tmp_path: Path, name: str) -> None:
    (tmp_path / "test_usual.py").write_text("def test_usual(): pass\n")
    bad = tmp_path / "test_bad.py"
    bad.write_text(f"import pytest\n{MARKS[name]}\n1 / 0\ndef test_bad(): pass\n")
    usual = [*with_plugin("chosen_files", tmp_path), "--collect-only", "-q", "-m", "not long and not thorough"]
    assert "1 test collected" in pytest_in(ROOT, *usual, str(tmp_path))
    for other in ([*usual, str(bad)], [*usual, "-m", "not long and (not thorough)", str(tmp_path)]):
        assert "ZeroDivisionError" in pytest_in(ROOT, *other), other


def test_files_of_one_share_run_in_one_process(tmp_path: Path) -> None:
    mark = 'import pytest\npytestmark = pytest.mark.share("servers")\n'
    bodies = {
        "one": mark + "def test_one(): pass\ndef test_two(): pass",
        "other": mark + "def test_other(): pass",
        "alone": "import time\ndef test_alone(): time.sleep(1)\ndef test_beside(): pass",
    }
    for name, body in bodies.items():
        (tmp_path / f"test_{name}.py").write_text(body)
    plugin = with_plugin("work_shares", tmp_path)
    output = pytest_in(ROOT, "-v", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", *plugin, str(tmp_path))
    process = {name: number for number, name in re.findall(r"\[(gw\d)\].* PASSED .*::test_(\w+)", output)}
    shared = {process[name] for name in ("one", "two", "other")}
    assert len(shared) == 1 and {process["alone"], process["beside"]} == {"gw0", "gw1"} - shared, output
