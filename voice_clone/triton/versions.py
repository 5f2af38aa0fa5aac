"""Whether the installed packages are those that this one needs, and the server new enough."""

from __future__ import annotations

import contextlib
import operator
import os
import re
import sys
from pathlib import Path
from typing import Any

from voice_clone.errors import Unsupported
from voice_clone.native.cache_folder import AHEAD

# What the Python backend of Triton 2.51 has and an older one may lack; those of NGC 24.10 to 26.07 have it all.
BACKEND = ("MetricFamily.HISTOGRAM", "TritonError.CANCELLED", "TritonError.ALREADY_EXISTS", "Logger")

_NEED = re.compile(r"""([A-Za-z0-9._-]+)([<>=]=?[^;\s]+)(?:\s*; extra == (["']torch["']))?$""")  # of no other extra
_REQUIREMENT = re.compile(r"^Requires-Dist: (.*)$", re.MULTILINE)
_BOUND = re.compile(r"(==|>=|<)([\d.]+)")
_FITS = {"==": operator.eq, ">=": operator.ge, "<": operator.lt}


def check_versions(package: str = "voice-clone-server") -> None:
    """Compare what is installed with the ranges of `package`; a build suffix such as `+cpu` does not matter.

    torch may be missing, because not every family needs it; numba, where native code was compiled ahead.

    Raises:
        Unsupported: names the package, its version and the right one.
    """
    folders = _folders()
    try:
        about = (folders[_plain(package)] / "METADATA").read_text(encoding="utf-8")
    except (KeyError, OSError):  # run from a source folder: nothing is stated
        return
    for need in filter(None, map(_NEED.match, _REQUIREMENT.findall(about.partition("\n\n")[0]))):
        name, wanted, optional = need.groups()
        folder = folders.get(_plain(name))
        if folder is None and (optional or (name == "numba" and AHEAD.is_dir())):
            continue
        found = "not installed" if folder is None else folder.stem.split("-")[1]
        if not _is_within(found, wanted):
            raise Unsupported(f"{name} is {found}; this version needs {name}{wanted}: install {package} again")


def _folders() -> dict[str, Path]:
    """The folder of each installed package, NAME-VERSION.dist-info. Each model looks for them, and `importlib.metadata`
    takes 20 ms.
    """
    found: dict[str, Path] = {}
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for entry in os.listdir(folder or "."):
                if entry.endswith((".dist-info", ".egg-info")) and "-" in entry.rpartition(".")[0]:
                    found.setdefault(_plain(entry.partition("-")[0]), Path(folder, entry))
    return found


def _plain(name: str) -> str:
    """The name of a package as its folder has it."""
    return re.sub(r"[-_.]+", "_", name).lower()


def _is_within(version: str, wanted: str) -> bool:
    """Whether a version is within bounds such as `>=1.26,<2`, by the numbers in front."""
    found = _numbers(version)
    return found != () and all(_FITS[how](found, _numbers(bound)) for how, bound in _BOUND.findall(wanted))


def _numbers(version: str) -> tuple[int, ...]:
    """Without zeros at the end: 1.26.0 is 1.26."""
    found = re.match(r"[\d.]*\d", version)
    return tuple(map(int, re.sub(r"(\.0+)+$", "", found[0]).split("."))) if found else ()


def check_backend(backend: Any) -> None:
    """Look for what is needed of `triton_python_backend_utils`.

    Raises:
        Unsupported: names what is missing, and the server that has it.
    """
    for name in BACKEND:
        try:
            operator.attrgetter(name)(backend)
        except AttributeError:
            raise Unsupported(
                f"this Triton's Python backend has no {name}: Triton 2.51 (NGC 24.10) or a newer one is needed"
            ) from None
