"""Whether the installed packages are those that this one is pinned to."""

from __future__ import annotations

import re
from importlib import metadata

from voice_clone.errors import Unsupported

_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^;\s]+)$")  # requirements of extras have a marker behind them


def check_versions(package: str = "voice-clone") -> None:
    """Compare what is installed with the exact pins of `package`; a build suffix such as `+cpu` does not matter.

    Raises:
        Unsupported: names the package, its version and the right one.
    """
    try:
        requirements = metadata.requires(package) or []
    except metadata.PackageNotFoundError:  # run from a source folder: nothing is pinned
        return
    for pin in filter(None, map(_PIN.match, requirements)):
        name, wanted = pin.groups()
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "not installed"
        if found.partition("+")[0] != wanted:
            raise Unsupported(f"{name} is {found}; this version needs {name}=={wanted}: install {package} anew")
