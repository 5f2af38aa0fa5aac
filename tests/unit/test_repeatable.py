"""What a run draws: the same each time, unless it is given a seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
PROBE = """
import os, random
import torch
from hypothesis import given, strategies as st

def note(value):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(repr(value) + "\\n")

@given(st.lists(st.text(min_size=1) | st.integers() | st.floats(), min_size=3, max_size=6))
def test_example(values):
    note(values)

def test_torch():
    note(torch.randn(3))

def test_python():
    note(random.random())
"""
CONSTANTS = "ONE, TWO, THREE, FOUR = 'a constant', 123456789123, 987654321987, 1.23456789\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with the plugin alone, and a module whose constants Hypothesis would draw."""
    (tmp_path / "test_probe.py").write_text(PROBE)
    (tmp_path / "constants.py").write_text(CONSTANTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def drawn(folder: Path, *options: str) -> tuple[list[str], str]:
    """What the tests of a run drew, in their order, and what pytest wrote."""
    notes = folder / "notes"
    notes.unlink(missing_ok=True)
    environment = {**os.environ, "NOTES": str(notes), "PYTHONPATH": f"{ROOT}:{folder}"}
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.repeatable", "-p", "no:schemathesis", *options]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return notes.read_text().splitlines(), done.stdout


def test_runs_are_alike_unless_they_have_seeds(folder: Path) -> None:
    lines, output = drawn(folder)
    assert len(lines) > 100 and "repeats it" not in output
    assert drawn(folder, "-n", "2", "--dist", "loadfile", "-p", "constants")[0] == lines, "whatever is imported"
    other, output = drawn(folder, "--randomly-seed=7", "--hypothesis-profile=explore")
    assert len(other) > 500 and len(set(other) & set(lines)) < 20  # the smallest examples are in both
    assert "--randomly-seed=7 repeats it" in output
    seeded = "--randomly-seed=7", "--hypothesis-profile=explore"
    assert drawn(folder, *seeded, "-n", "2", "--dist", "loadfile")[0] == other
