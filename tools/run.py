"""Runs a tool, a module with a function `main`, so that a signal ends it in one line: python -m tools.run MODULE ...

From the import of the module on, which may take seconds.
"""

from __future__ import annotations

import importlib
import sys

from tools.stopping import Stopped, stoppable


def run(module: str) -> int:
    """The exit status of a tool; its arguments are those of this process."""
    try:
        with stoppable():
            return importlib.import_module(module).main() or 0
    except Stopped as stopped:
        sys.stdout.flush()
        print("\nStopped." if sys.stderr.isatty() else "Stopped.", file=sys.stderr)  # behind the terminal's ^C
        return stopped.status


if __name__ == "__main__":
    del sys.argv[0]  # argv[0] is now the module's name, as for the module itself
    sys.exit(run(sys.argv[0]))
