"""Kernels are called without numba, and their machine code is used only where it fits; its bits are numba's own."""

from __future__ import annotations

import copy
import importlib
import logging
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perf.bench.rivals.ours import Engine, Prompt
from voice_clone.native import compiler_process, kernel
from voice_clone.native.arrays import Array
from voice_clone.native.cache_folder import digest_of, writable_folder
from voice_clone.native.compiler_process import Compiler
from voice_clone.native.kernel import Kernel
from voice_clone.native.packed_file import ENDING
from voice_clone.native.thread_pool import ThreadPool
from voice_clone.settings import PRECISIONS, Settings

ROOT = Path(__file__).parents[3]
SMALLEST = "silu.silu_in_place"
CALLED = f"""
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
import numpy as np
from voice_clone.native.kernel import Kernel
x = np.linspace(-3, 3, 37, dtype=np.float32)
Kernel("{SMALLEST}")(x)
assert not {{"numba", "llvmlite"}} & set(sys.modules)
print(x.tobytes().hex())
"""


def silu(kernel: Kernel) -> Array:
    x = np.linspace(-3, 3, 37, dtype=np.float32)
    kernel(x)
    return x


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    """Of machine code; empty."""
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path / "native"


def compiled(caplog: pytest.LogCaptureFixture) -> int:
    """How many kernels were compiled since the last call."""
    found = sum("compiled" in message for message in caplog.messages)
    caplog.clear()
    return found


def test_machine_code_is_found_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = silu(Kernel(SMALLEST))
    np.testing.assert_allclose(first, [x / (1 + np.exp(-x)) for x in np.linspace(-3, 3, 37)], rtol=1e-6)
    assert compiled(caplog) == 1 and len(list(folder.glob(f"*{ENDING}"))) == 1
    assert silu(Kernel(SMALLEST)).tobytes() == first.tobytes() and compiled(caplog) == 0
    with pytest.raises(RuntimeError, match=SMALLEST.partition(".")[0]):  # it takes no other kind of argument
        Kernel(SMALLEST)((1, 2))


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def writable_by_all(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize("spoil", [truncated, writable_by_all, Path.unlink])
def test_machine_code_that_may_be_wrong_is_compiled_again(
    spoil: Callable[[Path], None], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = silu(Kernel(SMALLEST))
    [path] = folder.glob(f"*{ENDING}")
    spoil(path)
    compiled(caplog)
    assert silu(Kernel(SMALLEST)).tobytes() == first.tobytes() and compiled(caplog) == 1
    assert silu(Kernel(SMALLEST)).tobytes() == first.tobytes() and compiled(caplog) == 0


@pytest.mark.parametrize("what", ["digest_of", "processor_digest"])
def test_other_sources_or_another_processor_find_none(
    what: str, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    silu(Kernel(SMALLEST))
    monkeypatch.setattr(kernel, what, lambda *_: "other")
    silu(Kernel(SMALLEST))
    assert compiled(caplog) == 2


def test_without_a_folder_a_linker_or_memory_to_map_it_computes_the_same(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = silu(Kernel(SMALLEST))

    def refused(code: Array) -> None:
        raise OSError("not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(kernel, "_mapped", refused)
        assert silu(Kernel(SMALLEST)).tobytes() == first.tobytes() and "not permitted" in caplog.text
    compiled(caplog)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert silu(Kernel(SMALLEST)).tobytes() == first.tobytes() and compiled(caplog) == 0, "LLVM has linked the same"
    monkeypatch.setattr(kernel, "writable_folder", lambda name: None)
    for _ in range(2):
        assert silu(Kernel(SMALLEST)).tobytes() == first.tobytes() and compiled(caplog) == 1


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", CALLED]
    started = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    said = [process.communicate()[0].splitlines() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert len({lines[-1] for lines in said}) == 1 and sorted(map(len, said)) == [1, 1, 2]


def test_any_change_of_any_source_changes_the_digest(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.mkdir()
    found = []
    for file, text in ((part / "a.py", "1"), (part / "a.py", "2"), (part / "b.py", "2"), (tmp_path / "b.py", "2")):
        for old in tmp_path.rglob("*.py"):
            old.unlink()
        file.write_text(text)
        digest_of.cache_clear()
        found.append(digest_of(tmp_path))
    assert len(set(found)) == 4
    digest_of.cache_clear()
    assert digest_of(tmp_path, frozenset(["part"])) == found[-1], "there is nothing in it"
    (part / "a.py").write_text("3")
    digest_of.cache_clear()
    assert digest_of(tmp_path, frozenset(["part"])) == found[-1] != digest_of(tmp_path)


def test_what_cannot_be_written_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in_the_way").touch()  # not even root can write below a file
    monkeypatch.setattr("voice_clone.native.cache_folder.PACKAGE", tmp_path / "in_the_way")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "user" / name)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "in_the_way"))
    assert writable_folder("native") == tmp_path / "user" / "voice-clone" / "native"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "chosen"))
    assert writable_folder("native") == tmp_path / "chosen" / "native"


def copied(argument: Any) -> Any:
    return tuple(map(copied, argument)) if isinstance(argument, tuple) else copy.copy(argument)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return all(map(same, one, other))
    return not isinstance(one, np.ndarray) or one.tobytes() == other.tobytes()


@pytest.mark.long
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_speech_has_the_bits_of_numba(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of each kernel, from prompt to samples."""
    monkeypatch.setattr("voice_clone.native.thread_pool._pool", ThreadPool(1))
    seen: Counter[str] = Counter()

    def check(kernel: Kernel, arguments: tuple[Any, ...], call: Callable[[], None]) -> None:
        module, _, name = kernel.name.rpartition(".")
        by_numba = getattr(importlib.import_module(f"voice_clone.native.kernels.{module}"), name)
        copies = copied(arguments)
        call()
        by_numba(*copies)
        assert same(arguments, copies), kernel.name
        seen[kernel.name] += 1

    def on_thread(self: Kernel, *arguments: Any) -> Callable[[int], None]:
        return lambda thread: check(self, (thread, *arguments), lambda: original(self, *arguments)(thread))

    original, plain = Kernel.on_thread, Kernel.__call__
    monkeypatch.setattr(Kernel, "on_thread", on_thread)
    monkeypatch.setattr(
        Kernel, "__call__", lambda self, *arguments: check(self, arguments, lambda: plain(self, *arguments))
    )
    environment = {"CHECKPOINT_DIR": str(ROOT / "tools/data/demo_voice"), "DEVICE": "cpu", "PRECISION": precision}
    engine = Engine(Settings({}, {f"VOICE_CLONE_{name}": value for name, value in environment.items()}))
    embedding = np.zeros(engine.config.talker.hidden_size, np.float32)
    text = engine.tokenizer.text_ids("Hello there, this is a test.")
    engine.speak(
        Prompt(role_ids=engine.tokenizer.role_ids, text_ids=text, speaker_embedding=embedding, language_id=None), 12
    )
    assert len(seen) == 8 and seen.total() > 50, seen


@pytest.mark.parametrize("command", [["sleep", "600"], ["false"]], ids=["hangs", "ends"])
def test_a_process_that_compiles_nothing_is_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started = iter((lambda: subprocess.Popen(command, **pipes), compiler_process.started))
    monkeypatch.setattr(compiler_process, "compiled", Compiler())
    monkeypatch.setattr(compiler_process, "started", lambda: next(started)())
    made = iter([1.0])  # the second process compiles for as long as it needs
    plain = compiler_process.threading.Timer  # type: ignore[attr-defined]

    def timer(seconds: float, act: Callable[[], None]) -> Any:
        return plain(next(made, 180.0) if act.__name__ == "kill" else seconds, act)

    monkeypatch.setattr(compiler_process.threading, "Timer", timer)  # type: ignore[attr-defined]
    assert np.isfinite(silu(Kernel(SMALLEST))).all()
    assert next(started, None) is None, "the second one has compiled"
