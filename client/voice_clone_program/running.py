"""How a program runs: its signals, and standard streams that are closed, full, or cannot encode a name.

This module imports nothing that takes time: a program calls `run_program` before it imports its own modules, and Ctrl-C
ends it in order while it does.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_closed: set[str] = set()  # the streams that were closed at the start

READER_LEFT = 128 + 13  # the exit code of a program that SIGPIPE ended, as shells have it
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal asked the program to end."""


class ReaderLeft(Exception):
    """The reader of the output has left, as `head` does."""


def run_program(name: str, run: Callable[[], int | None], stopped: str = "") -> int:
    """Run a program; returns its exit code: that of `run`, 1 if a file or stream fails, which a line on stderr says,
    128 and the number of the signal that ended it, or `READER_LEFT`.

    Args:
        name: of the program.
        run: imports what it needs, and works.
        stopped: what is said on stderr if a signal ends it.
    """
    open_streams()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it has lines of its own on stderr, of a failed handshake
    came: list[int] = []
    try:
        with _stoppable(came):
            try:
                return run() or 0
            finally:
                with naming("stdout"):
                    sys.stdout.flush()  # not at Python's end, where an error is reported
    except BaseException as error:
        if came or isinstance(error, KeyboardInterrupt):  # a library may have made another error of it
            _say(stopped and ("\n" if sys.stderr.isatty() else "") + stopped)  # behind the terminal's ^C
            return 128 + (came[0] if came else signal.SIGINT)
        if isinstance(error, ReaderLeft) or (isinstance(error, BrokenPipeError) and _reader_left()):
            _discard_stdout()
            return READER_LEFT
        if isinstance(error, OSError):
            if error.filename == "stdout":
                _discard_stdout()
            file = error.filename if error.filename != "" else "''"
            _say(f"{name}: {error}" if file is None else f"{name}: {file}: {error.strerror}")
            return 1
        raise


@contextlib.contextmanager
def naming(file: str) -> Iterator[None]:
    """Let the errors of the block name this file, unless they name one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.strerror:
            error.filename = file
        raise


def open_streams() -> None:
    """Let closed streams lead nowhere, before another file takes their numbers, and let no stream fail at a name."""
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(free, True)
    os.close(free)
    streams: Any = sys
    for number, (stream, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, stream) is None:
            setattr(streams, stream, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
            _closed.add(stream)
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="backslashreplace")


def stdout_is_closed() -> bool:
    """Return whether the program was started without stdout; what is written there then goes nowhere."""
    return "stdout" in _closed


@contextlib.contextmanager
def _stoppable(came: list[int]) -> Iterator[None]:
    """Raise `Stopped` when a signal comes that is not ignored, and note it."""

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        raise Stopped

    if threading.current_thread() is not threading.main_thread():  # it gets no signals
        yield
        return
    numbers = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _reader_left() -> bool:
    """Return whether the reader of stdout or stderr has left."""
    outputs = select.poll()
    for output in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it is no file
            outputs.register(output.fileno(), 0)
    return bool(outputs.poll(0))


def _discard_stdout() -> None:
    """Send what stdout still holds nowhere: Python would report at its end that it cannot be written."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(line: str) -> None:
    if line:
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)
