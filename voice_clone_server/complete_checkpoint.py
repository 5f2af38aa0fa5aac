"""Writes what a release has apart from its weights, such as their sizes, into a checkpoint's folder, once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from voice_clone_program.arguments import Parser

from voice_clone.errors import CheckpointError
from voice_clone_server.families.operating import completer_of
from voice_clone_server.families.recognition import FamilyError
from voice_clone_server.program import program


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog=program("complete_checkpoint"), description=__doc__)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint's folder")
    parser.add_argument(
        "--from",
        dest="source",
        default="",
        metavar="SOURCE",
        help="the model's configuration: a file, or a name in the official package; default: the folder's name",
    )
    given = parser.parse_args(arguments)
    try:
        if not given.checkpoint.is_dir():
            raise FamilyError(f"there is no folder {given.checkpoint}")
        completer = completer_of(given.checkpoint)
        if completer is None:
            raise FamilyError(f"{given.checkpoint} has no weights whose sizes are elsewhere")
        for made in completer.complete(given.checkpoint, given.source):
            print(made)
    except (CheckpointError, FamilyError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
