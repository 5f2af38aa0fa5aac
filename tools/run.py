"""Runs a tool, a module with a function `main`: python -m tools.run MODULE ...

A signal ends it in one line, from the import of the module on, which may take seconds. A reader of its output that
leaves, as `head` does, ends it without a word.
"""

from __future__ import annotations

import importlib
import sys

from voice_clone_program.running import run_program


def run(module: str) -> int:
    """The exit status of a tool; its arguments are those of this process."""
    return run_program(sys.argv[0], lambda: importlib.import_module(module).main(), "Stopped.")


if __name__ == "__main__":
    del sys.argv[0]  # argv[0] is now the module's name, as for the module itself
    sys.exit(run(sys.argv[0]))
