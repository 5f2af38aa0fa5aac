"""Whatever ends a tool ends what it started: servers, gateways, other tools, and its temporary folders.

A signal handler cannot promise that: SIGKILL runs none, nor does a crash. So each tool has a guard, a process beside
it, which waits on a pipe from it. When the tool has ended, the kernel closes the pipe. Then the guard asks every
process that the tool has marked to end, kills those that are still there after `GRACE`, with their own children, and
removes the paths that the tool has named. If the tool has cleaned up itself, the guard finds nothing to do.

The mark is a variable in the environment, which children inherit. So the guard finds each process, no matter how it was
started or who its parent is now, and never ends a process that only has the number of one that is gone. (The kernel's
own PR_SET_PDEATHSIG would end a server together with the thread that started it, and would not reach its models.)
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

VARIABLE = "VOICE_CLONE_STARTED_BY"
GRACE = 5.0  # seconds; after a longer time a tool that starts again would find its ports taken
PERIOD = 0.1  # seconds between two looks
SURE = 3  # looks without a find: one process may just be starting another


def marked(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment for a process that ends with this one: `environment`, or this process's own, and the mark."""
    _, mark = _guard(os.getpid())
    return {**(os.environ if environment is None else environment), VARIABLE: mark}


def remove_at_end(*patterns: str | Path) -> None:
    """Remove what is at these absolute paths when this process has ended. Strings may be patterns of `glob`."""
    pipe, _ = _guard(os.getpid())
    for each in patterns:
        pattern = glob.escape(str(each)) if isinstance(each, Path) else each
        os.write(pipe, os.fsencode(pattern) + b"\0")


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder that is removed at the end of the block, and if this process ends before."""
    with tempfile.TemporaryDirectory(prefix="voice-clone-") as folder:
        remove_at_end(Path(folder))
        yield Path(folder)


@functools.cache
def _guard(process: int) -> tuple[int, str]:
    """Return the pipe to the guard of this process, and the mark. The first call starts the guard. A fork gets its
    own.
    """
    mark = f"{process}-{secrets.token_hex(8)}"
    read, write = os.pipe()  # neither is inherited
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    actions = [
        (os.POSIX_SPAWN_DUP2, read, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    # In a session of its own: neither a Ctrl-C nor a terminal that closes reaches it.
    command = [sys.executable, "-I", "-S", __file__, mark]
    os.posix_spawn(sys.executable, command, environment, file_actions=actions, setsid=True)
    os.close(read)
    os.register_at_fork(after_in_child=lambda: os.close(write))  # a fork would hold it open for as long as it lives
    return write, mark


def _watch(mark: str) -> None:
    """Wait in the guard for the end of the tool, then tidy up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    with open(0, "rb") as pipe:
        patterns = [os.fsdecode(each) for each in pipe.read().split(b"\0")[:-1]]
    _end(f"{VARIABLE}={mark}".encode())
    for pattern in patterns:
        for path in glob.glob(pattern):
            _remove(path)


def _end(mark: bytes) -> None:
    """End all processes with the mark: first SIGTERM for those without a marked parent, at last SIGKILL for all."""
    asked: set[int] = set()
    began, empty = time.monotonic(), 0
    while empty < SURE and (spent := time.monotonic() - began) < GRACE + 5:  # not even SIGKILL ends some states
        found = _marked_processes(mark)
        empty = 0 if found else empty + 1
        for process, parent in found.items():
            if spent > GRACE or (parent not in found and process not in asked):
                asked.add(process)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL if spent > GRACE else signal.SIGTERM)
        time.sleep(PERIOD)


def _marked_processes(mark: bytes) -> dict[int, int]:
    """Return the processes with the mark, and their parents."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if mark in (folder / "environ").read_bytes().split(b"\0"):  # a zombie has none
                parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                found[int(folder.name)] = int(parent)
    return found


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


if __name__ == "__main__":
    _watch(sys.argv[1])
