"""How numba compiles the functions of this package, and where it caches their machine code.

numba compiles a cached function again when the function's own file has changed, but not when the file of a function
that it calls has changed. So every state of the package's sources has a cache folder of its own, named by a digest of
all sources: machine code of other sources is never found. Nothing is deleted. The folder of an earlier state may be
removed by hand at any time.

Processes that start together need the same functions. One of them compiles a function, the others wait for its machine
code: compiling all takes a minute and more of a core.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
from filelock import FileLock, Timeout
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime.nrt import rtsys
from platformdirs import user_cache_path

from voice_clone.native.instructions import INSTRUCTIONS

PATIENCE = 120.0  # seconds for which a process waits until another one has compiled a function
Decorator = Callable[[Callable[..., Any]], Any]

_config: Any = numba.config  # numba has no types
# numba reads these two when it compiles its first function in a process. They are part of the keys of its cache.
_config.CPU_NAME = INSTRUCTIONS.processor or _config.CPU_NAME
_config.CPU_FEATURES = INSTRUCTIONS.features if INSTRUCTIONS.features is not None else _config.CPU_FEATURES


def compiler(sources: Path) -> Decorator:
    """A decorator that makes a function native code: `numba.njit` with this package's options and cache.

    The function releases the GIL. It divides as numpy does, without raising. It is compiled without fast arithmetic;
    see arithmetic.py.

    Args:
        sources: the folder of all files whose functions are compiled into each other.
    """
    folder = cache_folder(sources)

    def compiled(function: Callable[..., Any]) -> Any:
        before = _config.CACHE_DIR
        try:
            if folder is not None:
                _config.CACHE_DIR = str(folder)  # numba reads it once, when it decorates
            dispatcher: Any = numba.njit(nogil=True, error_model="numpy", cache=folder is not None)(function)
        finally:
            _config.CACHE_DIR = before
        if folder is not None:
            _compile_once(dispatcher, folder / f"{function.__module__}.{function.__qualname__}.lock")
            _load_without_the_compiler(dispatcher._cache)
        return dispatcher

    return compiled


def _compile_once(dispatcher: Any, path: Path) -> None:
    """Let one process at a time compile a function; the next one finds its machine code in the cache."""
    compile_here = dispatcher.compile
    lock = FileLock(path)

    def compile_or_wait(signature: Any) -> Any:
        # numba's own lock first: so one thread of a process holds files' locks, of a function before those of what it
        # calls, and no two processes wait for each other.
        with global_compiler_lock, _held(lock):
            return compile_here(signature)

    dispatcher.compile = compile_or_wait


class _AsItIs:
    """numba's target without the implementations of what Python and numpy have, which only a compiler needs.

    Loading them takes 0.4 seconds of a processor and 20 MB. The compiler asks for them itself.
    """

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def refresh(self) -> None:
        """Only numba's runtime, which machine code calls."""
        rtsys.initialize(self._target)


def _load_without_the_compiler(cache: Any) -> None:
    """Link machine code that is found in the cache to a target that has not been filled for the compiler."""
    load = cache.load_overload
    cache.load_overload = lambda signature, target: load(signature, _AsItIs(target))


@contextlib.contextmanager
def _held(lock: FileLock) -> Iterator[None]:
    """Hold a lock during the body, unless another process keeps it for too long: it may be suspended."""
    try:
        lock.acquire(timeout=PATIENCE)
    except (Timeout, OSError):
        yield
        return
    try:
        yield
    finally:
        lock.release()


def cache_folder(sources: Path) -> Path | None:
    """The folder for machine code that was compiled from exactly the Python files below `sources`.

    Processes may use it at the same time: numba replaces files as a whole.

    Returns:
        The folder, or None if it can be written nowhere. Each process then compiles for itself.
    """
    return writable_folder(f"native-{digest_of(sources)}", sources)


def writable_folder(name: str, sources: Path = Path(__file__).parent) -> Path | None:
    """A folder of this name for what is computed once, or None if it can be written nowhere.

    It lies in NUMBA_CACHE_DIR if that is set, else in the `__pycache__` of `sources`. If it cannot be written there, it
    lies in the user's cache folder.
    """
    parents = [Path(_config.CACHE_DIR)] if _config.CACHE_DIR else []
    for parent in [*parents, sources / "__pycache__", user_cache_path("voice-clone")]:
        folder = parent / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return None


def digest_of(sources: Path) -> str:
    """A digest of the names and contents of all Python files below a folder."""
    digest = hashlib.sha256()
    for file in sorted(sources.rglob("*.py")):
        digest.update(file.relative_to(sources).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def processor_digest() -> str:
    """A digest of the instructions that code is compiled for and of this processor."""
    parts = repr(INSTRUCTIONS), get_host_cpu_name(), get_host_cpu_features().flatten()
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


compiled = compiler(Path(__file__).parent)
