"""A model whose process has died takes its server along, since nothing else ends the requests that it had.

Triton 2.51 neither starts such a process again nor answers for it: who waits for it waits for ever, and the server
still calls itself ready (seen with the talker and with code2wav after a SIGKILL, as the kernel sends it when memory is
short). So the models watch each other's processes. When one is lost the server gets a SIGTERM, and a SIGKILL if it
hangs, as it may when requests can never be answered. Whoever runs the server starts it anew, with all its voices.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import threading
from pathlib import Path

NAME = "voice_clone"  # of the process of a model, at most 15 bytes; tells it from others, even when it has died
PERIOD = 2.0  # seconds
LOOKS = 15  # until the server's children are listed anew: that takes ten milliseconds, for it has 200 threads
GRACE = 10  # seconds in which streams that need nothing of a lost model may come to their end

# In a process of its own, because this one is unloaded before the server hangs.
KILL = 'n="$1"; while [ "$n" -gt 0 ]; do sleep 1; kill -0 "$0" 2>&- || exit; n=$((n - 1)); done; kill -KILL "$0"'

log = logging.getLogger(__name__)


class LostModels:
    """Watches the models of the server that started this process, which becomes one of them.

    Where the system does not show them (`/proc`), that is logged, and nobody is watched.

    Args:
        server: the process of the server.
        period: seconds between two looks.
    """

    def __init__(self, server: int, period: float = PERIOD) -> None:
        self._server = server
        self._period = period
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lost models", daemon=True)
        try:
            Path("/proc/self/comm").write_text(NAME, encoding="ascii")
        except OSError as error:
            log.warning("if the process of a model dies it will not be noticed: %s", error)
            self._closing.set()
        if server == 1:  # from inside its container nobody can kill it
            log.warning("a server that hangs stays: run it under an init, as docker run --init has one")
        self._thread.start()

    def close(self) -> None:
        """Look no longer; to be called when this model is unloaded."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        before: set[int] = set()
        for look in itertools.count():
            if self._closing.wait(self._period):
                return
            if look < LOOKS or look % LOOKS == 0:  # at first others still come up
                children = _children(self._server)
                if not children:
                    log.warning("if the process of a model dies it will not be noticed: this system lists no children")
                    return
            lost = {child for child in children if _is_lost_model(child, self._server)}
            if lost & before:  # one that ends in peace is gone by the second look
                self._end_server()
                return
            before = lost

    def _end_server(self) -> None:
        """May be done by several models at once: a second SIGTERM changes nothing."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._server, signal.SIGTERM)  # before all that needs memory, or the server's help
        command = ["/bin/sh", "-c", KILL, str(self._server), str(GRACE)]
        os.posix_spawn(command[0], command, os.environ, setsid=True)
        log.error("the process of a model has died; the server ends, for only a new one can bring it back")


def _children(server: int) -> set[int]:
    """The processes that a server has started."""
    found: set[int] = set()
    for path in Path(f"/proc/{server}/task").glob("*/children"):  # of the thread that started them
        with contextlib.suppress(OSError):  # a thread that has just ended
            found.update(map(int, path.read_text().split()))
    return found


def _is_lost_model(process: int, server: int) -> bool:
    """Whether it was a model's process of this server and has died without its taking notice.

    Such a process is a zombie without a thread; with threads it is still ending. Fields of the file: proc(5).
    """
    try:
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return False
    name, _, rest = status.partition("(")[2].rpartition(")")
    fields = rest.split()
    state, parent, threads = fields[0], int(fields[1]), int(fields[17])
    return name == NAME and state == "Z" and parent == server and threads <= 1
