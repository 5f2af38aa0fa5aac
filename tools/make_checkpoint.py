"""Makes a checkpoint with random weights in the official format of a family.

It loads and runs like a released checkpoint of its shape; what it says is noise. Same arguments, same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from voice_clone_program.arguments import Parser

from tools import qwen3_aligner
from tools.families.toolkit import checkpoint_maker, families_with

ALIGNER = "qwen3_aligner"  # speaks nothing, so it is no family


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    known = [*families_with("checkpoint_maker"), ALIGNER]
    family = Parser(add_help=False)
    family.add_argument("--family", choices=known, default=known[0], help="whose format (default: %(default)s)")
    chosen, _ = family.parse_known_args(arguments)
    maker = qwen3_aligner if chosen.family == ALIGNER else checkpoint_maker(chosen.family)
    parser = Parser(prog="tools/make_checkpoint", description=__doc__, parents=[family])
    parser.add_argument("--shape", choices=sorted(maker.SHAPES), required=True, help="tiny is for tests and the demo")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: %(default)s)")
    parser.add_argument("--dtype", choices=sorted(maker.DTYPES), default="bf16", help="of the weights (default: bf16)")
    parser.add_argument("--shards", type=int, default=1, help="files of the weights (default: %(default)s)")
    parser.add_argument("folder", type=Path, metavar="OUT", help="a new folder")
    given = parser.parse_args(arguments)
    if given.shards < 1:
        parser.error("--shards must be at least 1")
    try:
        maker.make_checkpoint(given.shape, given.seed, given.folder, given.dtype, given.shards)
    except OSError as error:
        parser.error(str(error))
    print(f"{given.folder}: {given.family}, {given.shape}, seed {given.seed}")


if __name__ == "__main__":
    main()
