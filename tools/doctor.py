"""tools/doctor: the program of voice_clone_server, with the released models of which tools/families knows the sizes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from voice_clone_server import doctor


def released() -> list[Any]:
    """Their workloads."""
    from tools.families.toolkit import families_with, workloads  # these import torch, for seconds

    return [work for family in families_with("checkpoint_maker") for work in workloads(family).values()]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    return doctor.main(arguments, released)


if __name__ == "__main__":
    sys.exit(main())
