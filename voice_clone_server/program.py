"""What the programs are called."""

from __future__ import annotations

import sys

COMMAND = "voice-clone-server"


def program(name: str) -> str:
    """A program's name as it was called: a word of the installed command, or a file in tools/ of a checkout."""
    return sys.argv[0] if sys.argv[0].startswith(f"{COMMAND} ") else f"tools/{name}"
