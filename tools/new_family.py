"""Begins a family of models: a package with its card, its models, and a checkpoint with random weights.

It is a copy of the made-up family in tools/example_family under another name, and speaks noise at once. Change one
file after the other; docs/adding_a_family.md says in which order.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import keyword
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from voice_clone_client._arguments import Parser

from tools.families.cards import PACKAGES, cards
from tools.models import write
from tools.triton_server import ROOT

EXAMPLE = "tools.example_family"
SOURCE = ROOT / "tools" / "example_family"


def renamed(text: str, name: str) -> str:
    """A file of the example for another family."""
    title = "".join(part.capitalize() for part in name.split("_"))
    return text.replace(EXAMPLE, name).replace("chirp", name).replace("Chirp", title).replace("CHIRP", name.upper())


def begin(name: str, folder: Path) -> Path:
    """Write the package of a family into a folder, which becomes importable here.

    Returns:
        The package's folder.

    Raises:
        FileExistsError: it is there.
    """
    package = folder / name
    package.mkdir(parents=True)
    try:
        for file in sorted(SOURCE.glob("*.py")):
            (package / file.name).write_text(renamed(file.read_text(encoding="utf-8"), name), encoding="utf-8")
        sys.path.insert(0, str(folder))
        write([name], package / "models")
        importlib.import_module(f"{name}.checkpoint_maker").make_checkpoint(0, package / "checkpoint")
    except BaseException:
        shutil.rmtree(package)
        raise
    return package


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = Parser(prog="tools/new_family", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME", help="of the family and its package: lower-case letters, digits, _")
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="where the package goes (here)")
    asked = parser.parse_args(arguments)
    name, folder = asked.name, asked.output.resolve()
    taken = {card.name for card in cards(PACKAGES)}
    if not name.isidentifier() or name != name.lower() or not name.isascii() or keyword.iskeyword(name):
        parser.error(f"NAME is {name!r}; it must be lower-case letters, digits and _, and begin with a letter")
    if name.startswith("_") or any(f"{name}_".startswith(f"{each}_") for each in taken):
        parser.error(f"NAME is {name!r}; it must not begin with _ or the name of a family: {', '.join(sorted(taken))}")
    if importlib.util.find_spec(name):
        parser.error(f"NAME is {name!r}, which is a Python package already; take another")
    try:
        package = begin(name, folder)
    except OSError as error:
        parser.error(f"{folder / name}: {error.strerror}")
    print(f"{package} is a family that speaks noise. Serve it, then change it:\n")
    print(f"  PYTHONPATH={folder} tools/serve --repository {package / 'models'} --checkpoint {package / 'checkpoint'}")
    print("  voice-clone upload Ada clip.wav --text 'the words spoken in the clip'")
    print("  voice-clone speak 'Good morning.' --voice Ada --max-frames 200 -o noise.wav\n")
    print(f"After a change of {package / 'family.py'}, write its models again:\n")
    print(f"  PYTHONPATH={folder} .venv/bin/python -m tools.models {name} --output {package / 'models'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
