"""What the programs are called."""

from __future__ import annotations

import sys

COMMAND = "voice-clone-server"


def program(name: str) -> str:
    """A program's name: a word of the installed command, or a file in tools/ of a checkout, as this one was called."""
    return f"{COMMAND} {name.replace('_', '-')}" if sys.argv[0].startswith(f"{COMMAND} ") else f"tools/{name}"
