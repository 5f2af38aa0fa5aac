"""Turns what a checkpoint has as pickles, such as its codec or its voices, into safetensors, once. The server opens no
pickle.

Nothing that the files hold is run. A file that holds anything but the expected tensors is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from voice_clone_program.arguments import Parser

from voice_clone.errors import CheckpointError
from voice_clone_server.families.operating import pickle_converter
from voice_clone_server.families.recognition import FamilyError, add_repository_option, family_of
from voice_clone_server.program import program
from voice_clone_server.triton_server import MODELS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog=program("convert_pickles"), description=__doc__)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint's folder")
    add_repository_option(parser)
    given = parser.parse_args(arguments)
    try:
        family = family_of(given.checkpoint, [MODELS, *given.repository])
        converter = pickle_converter(family)
        if converter is None:
            raise FamilyError(f"checkpoints of {family} have no pickles to convert")
        for made in converter.convert(given.checkpoint):
            print(made)
    except (CheckpointError, FamilyError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
