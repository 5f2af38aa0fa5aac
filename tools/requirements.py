"""What tools/env.sh and the images install: python tools/requirements.py EXTRAS prints what server and gateway require,
but torch.

With --missing, those that this Python lacks, torch too. It needs nothing but Python 3.11.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "constraints.txt"
_OWN = re.compile(r"([\w-]+)\[([\w,-]+)\]$")
_RANGE = re.compile(r"([\w.-]+)(\[[\w,]+\])?[<>]")


def project(folder: Path) -> dict[str, Any]:
    """The table of that name in a folder's pyproject.toml, and what builds it."""
    toml = import_module("tomllib")  # the packages themselves run on Python 3.10, which has none
    tables = toml.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, Any] = tables["project"] | {"build": tables["build-system"]["requires"]}
    return found


def requirements(of: dict[str, Any], extras: list[str]) -> Iterator[str]:
    """The requirements of a project with extras, which may name others."""
    optional = (each for name in extras for each in of["optional-dependencies"][name])
    for each in (*of["dependencies"], *optional):
        own = _OWN.match(each)
        if own and own[1] == of["name"]:
            yield from requirements({**of, "dependencies": []}, own[2].split(","))
        else:
            yield each


def pinned(requirement: str) -> str:
    """A requirement in the version that constraints.txt names; one that is exact stays as it is."""
    found = _RANGE.match(requirement)
    if found is None:
        return requirement
    name, extras = found.groups("")
    [pin] = [line for line in PINS.read_text(encoding="utf-8").splitlines() if line.startswith(f"{name}==")]
    return pin.replace("==", f"{extras}==")


def is_missing(requirement: str) -> bool:
    """Whether this Python lacks it, or has another version than its pin."""
    name, _, version = re.sub(r"\[.*?\]|;.*", "", requirement).strip().partition("==")
    try:
        found = metadata.version(re.split(r"[<>=!~ ]", name)[0])
    except metadata.PackageNotFoundError:
        return True
    return bool(version) and found.partition("+")[0] != version


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", help="separated by commas")
    parser.add_argument("--without-gateway", action="store_true")
    parser.add_argument("--without-server", action="store_true")
    parser.add_argument("--missing", action="store_true")
    given = parser.parse_args()
    ours, client, gateway = project(ROOT), project(ROOT / "client"), project(ROOT / "gateway")
    extras = [*given.extras.split(","), *(["torch"] if given.missing else [])]
    wanted = [*([] if given.without_server else requirements(ours, extras)), *requirements(client, [])]
    if not given.without_gateway:
        wanted += requirements(gateway, ["fleet"])
    found = dict.fromkeys(pinned(each) for each in wanted if not each.startswith("voice-clone-"))
    if given.missing:
        lacking = [each.partition(";")[0].strip() for each in found if is_missing(each)]
        print(*lacking, *ours["build"])  # pip wants these for each build of ours, whatever is installed
    else:
        print(*(each for each in found if not re.match(r"torch\b", each)), sep="\n")


if __name__ == "__main__":
    main()
