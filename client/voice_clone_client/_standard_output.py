"""A command ends silently when the reader of its output ends, as `head` does; other programs do the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

READER_LEFT = 128 + 13  # the exit code of a program that SIGPIPE ended, as shells have it


def until_reader_leaves(run: Callable[[], int]) -> int:
    """The exit code of `run`, or `READER_LEFT` where the reader of stdout has left."""
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()  # not at Python's end, where an error is reported
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports it again at its exit
        return READER_LEFT
