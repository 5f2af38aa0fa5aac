"""How numba compiles the functions of this package, and where it caches their machine code.

numba compiles a cached function again when the function's own file has changed, but not when the file of a function
that it calls has changed. So every state of the package's sources has a cache folder of its own, named by a digest of
all sources: machine code of other sources is never found. Nothing is deleted. The folder of an earlier state may be
removed by hand at any time.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from platformdirs import user_cache_path

Decorator = Callable[[Callable[..., Any]], Any]

_config: Any = numba.config  # numba has no types


def compiler(sources: Path) -> Decorator:
    """A decorator that makes a function native code: `numba.njit` with this package's options and cache.

    The function releases the GIL. It divides as numpy does, without raising. It is compiled without fast arithmetic;
    see primitives/arithmetic.py.

    Args:
        sources: the folder of all files whose functions are compiled into each other.
    """
    folder = cache_folder(sources)

    def compiled(function: Callable[..., Any]) -> Any:
        before = _config.CACHE_DIR
        try:
            if folder is not None:
                _config.CACHE_DIR = str(folder)  # numba reads it once, when it decorates
            return numba.njit(nogil=True, error_model="numpy", cache=folder is not None)(function)
        finally:
            _config.CACHE_DIR = before

    return compiled


def cache_folder(sources: Path) -> Path | None:
    """The folder for machine code that was compiled from exactly the Python files below `sources`.

    It lies in NUMBA_CACHE_DIR if that is set, else in the `__pycache__` of `sources`. If it cannot be written there, it
    lies in the user's cache folder. Processes may use it at the same time: numba replaces files as a whole.

    Returns:
        The folder, or None if it can be written nowhere. Each process then compiles for itself.
    """
    name = f"native-{_digest(sources)}"
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


def _digest(sources: Path) -> str:
    """A digest of the names and contents of all Python files below a folder."""
    digest = hashlib.sha256()
    for file in sorted(sources.rglob("*.py")):
        digest.update(file.relative_to(sources).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


compiled = compiler(Path(__file__).parent)
