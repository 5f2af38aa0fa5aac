"""Whether the installed packages are those that this one is pinned to, and the server new enough."""

from __future__ import annotations

import re
from importlib import metadata
from operator import attrgetter
from typing import Any

from voice_clone.errors import Unsupported

# What the Python backend of Triton 2.51 has and an older one may lack; those of NGC 24.10 to 26.07 have it all.
BACKEND = ("MetricFamily.HISTOGRAM", "TritonError.CANCELLED", "TritonError.ALREADY_EXISTS", "Logger")

_PIN = re.compile(r"""([A-Za-z0-9._-]+)==([^;\s]+)(?:\s*; extra == (["']torch["']))?$""")  # of no other extra


def check_versions(package: str = "voice-clone-server") -> None:
    """Compare what is installed with the exact pins of `package`; a build suffix such as `+cpu` does not matter.

    torch may be missing, because not every family needs it.

    Raises:
        Unsupported: names the package, its version and the right one.
    """
    try:
        requirements = metadata.requires(package) or []
    except metadata.PackageNotFoundError:  # run from a source folder: nothing is pinned
        return
    for pin in filter(None, map(_PIN.match, requirements)):
        name, wanted, optional = pin.groups()
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            if optional:
                continue
            found = "not installed"
        if found.partition("+")[0] != wanted:
            raise Unsupported(f"{name} is {found}; this version needs {name}=={wanted}: install {package} again")


def check_backend(backend: Any) -> None:
    """Look for what is needed of `triton_python_backend_utils`.

    Raises:
        Unsupported: names what is missing, and the server that has it.
    """
    for name in BACKEND:
        try:
            attrgetter(name)(backend)
        except AttributeError:
            raise Unsupported(
                f"this Triton's Python backend has no {name}: Triton 2.51 (NGC 24.10) or a newer one is needed"
            ) from None
