"""The command line of a comparison of bare stages with an official package."""

from __future__ import annotations

import argparse
from pathlib import Path

from voice_clone.native.matrix.weights import PRECISIONS


def options(program: str, description: str | None, weights: str) -> argparse.Namespace:
    """What the command line asks for. `weights`: of which of the checkpoint's weights one file is needed."""
    parser = argparse.ArgumentParser(
        prog=f"perf/{program}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help=f"{weights} in one file")
    parser.add_argument("--seconds", type=float, default=2.0, help="of the clip (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=12, help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=2, help="of the codec (default: %(default)s)")
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", default=list(PRECISIONS))
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    return parser.parse_args()
