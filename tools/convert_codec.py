"""Turns the pickle in which a checkpoint's codec is released into safetensors, once. The server opens no pickle.

Nothing that the file holds is run. A file that holds anything but the codec's tensors is refused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.families.recognition import FamilyError, add_repository_option, family_of
from tools.families.toolkit import codec_converter, families_with
from voice_clone.errors import CheckpointError

REPOSITORY = Path(__file__).resolve().parent.parent / "model_repository"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools/convert_codec", description=__doc__)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint's folder")
    add_repository_option(parser)
    given = parser.parse_args(arguments)
    try:
        family = family_of(given.checkpoint, [REPOSITORY, *given.repository])
        if family not in families_with("codec_converter"):
            raise FamilyError(f"checkpoints of {family} have no codec to convert")
        print(codec_converter(family).convert(given.checkpoint))
    except (CheckpointError, FamilyError) as error:
        print(f"tools/convert_codec: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
