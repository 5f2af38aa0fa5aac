"""Runs a tool, a module with a function `main`: python -m tools.run MODULE ...

A signal ends it in one line, from the import of the module on, which may take seconds. A reader of its output that
leaves, as `head` does, ends it without a word.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys

from tools.stopping import Stopped, stoppable


def run(module: str) -> int:
    """The exit status of a tool; its arguments are those of this process."""
    try:
        try:
            with stoppable():
                return importlib.import_module(module).main() or 0
        finally:
            sys.stdout.flush()  # not at Python's end, where an error is reported
    except Stopped as stopped:
        print("\nStopped." if sys.stderr.isatty() else "Stopped.", file=sys.stderr)  # behind the terminal's ^C
        return stopped.status
    except BrokenPipeError:
        if not _reader_left():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports it again at its exit
        return 128 + signal.SIGPIPE


def _reader_left() -> bool:
    """Whether what stdout or stderr goes to has no reader any more."""
    outputs = select.poll()
    for output in (sys.stdout, sys.stderr):
        outputs.register(output.fileno(), 0)
    return bool(outputs.poll(0))


if __name__ == "__main__":
    del sys.argv[0]  # argv[0] is now the module's name, as for the module itself
    sys.exit(run(sys.argv[0]))
