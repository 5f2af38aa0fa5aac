"""How official code is imported that lies in `.venv/official`, without what it depends on.

tools/env.sh puts it there, because its requirements would replace half of the environment. What the modules import
besides, but do not use for what is compared, is replaced by modules without content; packages whose `__init__` imports
more are entered without it.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

PACKAGES = Path(sys.prefix) / "official"
KALDI = ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi")
"""What some import of torchaudio, and do not use for what is compared."""


@contextmanager
def quiet() -> Iterator[None]:
    """Run official code without its warnings becoming errors of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check_there(name: str = "") -> None:
    """Check that a package is there, or, without a name, the folder of all.

    Raises:
        ImportError: it is not.
    """
    folder = PACKAGES / name
    if not folder.is_dir():
        raise ImportError(f"{folder} is missing; tools/test makes it")


@contextmanager
def importable() -> Iterator[None]:
    """What is in `PACKAGES` can be imported."""
    with mock.patch.object(sys, "path", [*sys.path, str(PACKAGES)]):
        yield


def bare_packages(names: Iterable[str]) -> dict[str, types.ModuleType]:
    """Packages of `PACKAGES` without what their `__init__` has, by name."""
    made = {name: types.ModuleType(name) for name in names}
    for name, module in made.items():
        module.__path__ = [str(PACKAGES / name.replace(".", "/"))]
    return made


def empty_packages(names: Iterable[str]) -> dict[str, types.ModuleType]:
    """Packages without content in place of those that are not there, by name."""
    made = {name: types.ModuleType(name) for name in names}
    for name, module in made.items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
    return made
