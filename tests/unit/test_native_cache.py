"""Compiled code does not outlive the sources that it was made from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from voice_clone.native import forget_other_sources

INNER = "from numba import njit\n\n@njit\ndef inner():\n    return {}\n"
OUTER = "from numba import njit\nfrom {0}.inner import inner\n\n@njit(cache=True)\ndef outer():\n    return inner()\n"


def test_a_change_of_any_source_removes_all_that_was_compiled(tmp_path: Path) -> None:
    kept = tmp_path / "__pycache__"
    (tmp_path / "a.py").write_text("1")
    forget_other_sources(tmp_path)
    compiled = [kept / "a.f-1.py311.nbi", kept / "a.f-1.py311.1.nbc"]

    def compile_all() -> None:
        for file in compiled:
            file.touch()

    compile_all()
    (kept / "a.cpython-311.pyc").touch()
    forget_other_sources(tmp_path)
    assert all(file.exists() for file in compiled)
    (tmp_path / "a.py").write_text("2")
    forget_other_sources(tmp_path)
    assert not any(file.exists() for file in compiled) and (kept / "a.cpython-311.pyc").exists()
    compile_all()
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    forget_other_sources(tmp_path)
    assert not any(file.exists() for file in compiled)
    assert [file.name for file in kept.glob("sources*")] == ["sources.sha256"]


def test_where_nothing_can_be_written_nothing_happens(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").write_text("in the way")
    forget_other_sources(tmp_path)
    assert (tmp_path / "__pycache__").read_text() == "in the way"


def test_a_function_is_compiled_again_after_a_change_of_what_it_calls(tmp_path: Path) -> None:
    package = tmp_path / "compiled_together"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from pathlib import Path\nfrom voice_clone.native import forget_other_sources\n"
        "forget_other_sources(Path(__file__).parent)\n"
    )
    (package / "outer.py").write_text(OUTER.format(package.name))
    code = f"from {package.name}.outer import outer; print(outer(), sum(outer.stats.cache_hits.values()))"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # which is known by the second in which it was made
    found = []
    for value in (1, 1, 2):
        (package / "inner.py").write_text(INNER.format(value))
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
        found.append(done.stdout.split())
    assert found == [["1", "0"], ["1", "1"], ["2", "0"]]
