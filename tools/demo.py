"""tools/demo: the demo of voice_clone_server, which can make random checkpoints here."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tools.families.toolkit import checkpoint_maker, families_with
from voice_clone_server import demo
from voice_clone_server.triton_server import ROOT


def make(family: str, folder: Path) -> None:
    """Write a tiny random checkpoint."""
    checkpoint_maker(family).make_checkpoint("tiny", 0, folder)


def main(cache: Path = ROOT / ".cache") -> int:
    """The command line."""
    return demo.main({family: partial(make, family) for family in families_with("checkpoint_maker")}, cache)


if __name__ == "__main__":
    sys.exit(main())
