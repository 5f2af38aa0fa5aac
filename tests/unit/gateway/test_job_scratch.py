"""The folder in which files of jobs are made."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from voice_clone_gateway.jobs.scratch import Scratch, remove_left

KILLED = """
import os, signal
from voice_clone_gateway.jobs.scratch import Scratch
folder = Scratch().path
(folder / "job.part").write_bytes(b"speech")
print(folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_gateway_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others have stays: that of a gateway that works, and what is not a folder of this kind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    printed = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, check=False).stdout
    left = Path(printed.strip())
    assert left.parent == tmp_path and (left / "job.part").exists()
    works, other, elsewhere = Scratch(), tmp_path / "voice-clone-jobs", tmp_path / "elsewhere"
    (works.path / "job.part").write_bytes(b"speech")
    for folder in (other, elsewhere):
        folder.mkdir()
    (tmp_path / "voice-clone-jobs-link").symlink_to(elsewhere)
    remove_left()
    assert not left.exists() and other.exists() and elsewhere.exists() and (works.path / "job.part").exists()
    works.remove()
    assert not works.path.exists()
