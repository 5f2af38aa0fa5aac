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

from voice_clone_program.arguments import Parser

from tools.models import write
from voice_clone_server.families.cards import PACKAGES, cards
from voice_clone_server.triton_server import MODELS, ROOT

EXAMPLE = "tools.example_family"
SOURCE = ROOT / "tools" / "example_family"
CLIP = ROOT / "tools" / "data" / "reference"
FAMILIES = ROOT / "voice_clone" / "families"


def renamed(text: str, name: str, package: str) -> str:
    """A file of the example for another family."""
    title = "".join(part.capitalize() for part in name.split("_"))
    return text.replace(EXAMPLE, package).replace("chirp", name).replace("Chirp", title).replace("CHIRP", name.upper())


def begin(name: str, folder: Path) -> tuple[Path, Path, Path]:
    """Write the package of a family into a folder, which becomes importable here.

    Returns:
        The package's folder, the repository of its models and the folder of its checkpoint. Of a family among those of
        this repository these are the repository's own, and `checkpoints/`, which Git ignores.

    Raises:
        FileExistsError: it is there.
    """
    own, package = folder == FAMILIES, folder / name
    dotted = f"voice_clone.families.{name}" if own else name
    models = MODELS if own else package / "models"
    checkpoint = ROOT / "checkpoints" / name if own else package / "checkpoint"
    package.mkdir(parents=True)
    try:
        (package / "__init__.py").touch()
        for file in sorted(SOURCE.glob("*.py")):
            (package / file.name).write_text(renamed(file.read_text(encoding="utf-8"), name, dotted), encoding="utf-8")
        if not own:
            sys.path.insert(0, str(folder))
        write([dotted], models)
        importlib.import_module(f"{dotted}.checkpoint_maker").make_checkpoint(0, checkpoint)
    except BaseException:
        shutil.rmtree(package)
        raise
    return package, models, checkpoint


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = Parser(prog="tools/new_family", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME", help="of the family and its package: lower-case letters, digits, _")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where the package goes (here); voice_clone/families: it becomes one of this repository's",
    )
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
        package, models, checkpoint = begin(name, folder)
    except OSError as error:
        parser.error(f"{folder / name}: {error.strerror}")
    path, where, again = "", "", f"{sys.executable} -m tools.models"
    if models != MODELS:
        path, where = f"PYTHONPATH={folder} ", f"--repository {models} "
        again += f" {name} --output {models}"
    print(f"{package} is a family that speaks noise. Serve it, then change it:\n")
    print(f"  {path}tools/serve {where}--checkpoint {checkpoint}")
    print(f'  voice-clone upload Ada {CLIP}.wav --text "$(cat {CLIP}.txt)"')
    print("  voice-clone speak 'Good morning.' --voice Ada --max-frames 200 -o noise.wav\n")
    print(f"After a change of {package / 'family.py'}, write again what follows from it:\n")
    print(f"  {path}{again}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
