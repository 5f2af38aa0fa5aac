"""Machine code is used only with the sources that it was compiled from."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest

from voice_clone.native import compilation
from voice_clone.native.compilation import cache_folder, compiler

pytestmark = pytest.mark.thorough

PACKAGE = "compiled_together"
COMPILED = """
from pathlib import Path
from voice_clone.native.compilation import compiler

compiled = compiler(Path(__file__).parent)
"""
INNER = """
from compiled_together.compiled import compiled

@compiled
def inner():
    return {}
"""
OUTER = """
from compiled_together.compiled import compiled
from compiled_together.parts.inner import inner

@compiled
def outer():
    return inner()
"""


@pytest.fixture(autouse=True)
def no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """NUMBA_CACHE_DIR is not set, and the user's cache folder is not written to."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(compilation, "user_cache_path", lambda name: Path("/dev/null") / name)


def obstruct(folder: Path) -> None:
    """Make a file in place of a folder, so that not even root can write into the folder."""
    folder.write_text("in the way")


def test_any_change_of_any_source_changes_the_folder(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.mkdir()
    (part / "a.py").write_text("1")
    folders = [cache_folder(tmp_path)]
    assert folders[0] is not None and folders[0].parent == tmp_path / "__pycache__" and folders[0].is_dir()
    (folders[0] / "a.f-1.py311.nbi").touch()
    (tmp_path / "__pycache__" / "a.cpython-311.pyc").touch()
    assert cache_folder(tmp_path) == folders[0]
    (part / "a.py").write_text("2")
    folders.append(cache_folder(tmp_path))
    (part / "a.py").rename(part / "b.py")
    folders.append(cache_folder(tmp_path))
    (part / "b.py").rename(tmp_path / "b.py")
    folders.append(cache_folder(tmp_path))
    assert None not in folders and len(set(folders)) == 4
    assert (folders[0] / "a.f-1.py311.nbi").exists(), "a process with the old sources may still use it"


def test_the_setting_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "chosen"))
    folder = cache_folder(sources)
    assert folder is not None and folder.parent == tmp_path / "chosen"


def test_a_read_only_installation_uses_the_user_s_folder_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstruct(tmp_path / "__pycache__")
    assert cache_folder(tmp_path) is None
    function = compiler(tmp_path)(lambda: 7)
    assert function() == 7 and (tmp_path / "__pycache__").read_text() == "in the way"
    monkeypatch.setattr(compilation, "user_cache_path", lambda name: tmp_path / "user" / name)
    folder = cache_folder(tmp_path)
    assert folder is not None and folder.parent == tmp_path / "user" / "voice-clone"


def test_other_functions_of_the_process_keep_their_cache(tmp_path: Path) -> None:
    compiler(tmp_path)(lambda: 7)
    assert numba.config.CACHE_DIR == ""


def write_package(package: Path, value: int) -> None:
    """A package of a function that calls another one, which returns `value`."""
    (package / "parts").mkdir(parents=True, exist_ok=True)
    texts = {"__init__": "", "compiled": COMPILED, "outer": OUTER, "parts/inner": INNER.format(value)}
    for file, text in texts.items():
        (package / f"{file}.py").write_text(text)


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    write_package(tmp_path / PACKAGE, 1)
    code = (
        f"import sys; from {PACKAGE}.outer import outer; print('loaded', flush=True); sys.stdin.read(); "
        "print(outer(), sum(outer.stats.cache_misses.values()))"
    )
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)
    found = []
    with contextlib.ExitStack() as stack:
        running: list[Any] = []
        for _ in range(4):
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            running.append(stack.enter_context(process))
        for process in running:
            assert process.stdout.readline() == "loaded\n"
        for process in running:
            process.stdin.close()
        for process in running:
            found.append(process.stdout.read().split())
    assert sorted(found) == [["1", "0"]] * 3 + [["1", "1"]]


@pytest.mark.parametrize("setting", ["", "chosen"])
def test_a_function_is_compiled_again_after_a_change_of_what_it_calls(setting: str, tmp_path: Path) -> None:
    package = tmp_path / PACKAGE
    code = f"from {PACKAGE}.outer import outer; print(outer(), sum(outer.stats.cache_hits.values()))"
    # Without bytecode, because Python compares its time of change in whole seconds only.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)
    if setting:
        environment["NUMBA_CACHE_DIR"] = str(tmp_path / setting)
    found = []
    for value in (1, 1, 2, 1):
        write_package(package, value)
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
        found.append(done.stdout.split())
    assert found == [["1", "0"], ["1", "1"], ["2", "0"], ["1", "1"]]
    assert bool(list(package.rglob("*.nbi"))) != bool(setting)
