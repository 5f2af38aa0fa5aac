"""When the process of a model dies, the server ends too, because nothing else ends that model's requests.

Triton 2.51 does not start such a process again and does not answer its requests: their clients wait for ever, and the
server still reports that it is ready (seen with the talker and with code2wav after a SIGKILL, which the kernel sends
when memory is short). So the models watch each other's processes. When one is lost, the server gets a SIGTERM, and a
SIGKILL if it hangs, which it may do because of requests without an answer. A supervisor (systemd, docker compose,
Kubernetes) starts it again, with all its voices.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import threading
from pathlib import Path

NAME = "voice_clone"  # of the process of a model, at most 15 bytes; identifies it even after its death
PERIOD = 2.0  # seconds
LOOKS = 15  # between two listings of the server's children, each of which takes ten milliseconds
GRACE = 10  # seconds for streams that do not need the lost model to end

# Runs in a process of its own, because this process is unloaded before the server hangs.
KILL = 'n="$1"; while [ "$n" -gt 0 ]; do sleep 1; kill -0 "$0" 2>&- || exit; n=$((n - 1)); done; kill -KILL "$0"'

log = logging.getLogger(__name__)


class LostModels:
    """Watches the models of the server that started this process, which becomes one of them.

    Where the system has no `/proc`, this is logged and nothing is watched.

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
            log.warning("the death of a model's process will not be noticed: %s", error)
            self._closing.set()
        if server == 1:  # no process inside its container can kill it
            log.warning("a server that hangs cannot be killed: run it under an init, e.g. docker run --init")
        self._thread.start()

    def close(self) -> None:
        """Stop watching; call it when this model is unloaded."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        before: set[int] = set()
        for look in itertools.count():
            if self._closing.wait(self._period):
                return
            if look < LOOKS or look % LOOKS == 0:  # models that load later appear
                children = _children(self._server)
                if not children:
                    log.warning("the death of a model's process will not be noticed: no list of child processes here")
                    return
            lost = {child for child in children if _is_lost_model(child, self._server)}
            if lost & before:  # a process that ends normally is gone by the second look
                self._end_server()
                return
            before = lost

    def _end_server(self) -> None:
        """Several models may do this at once: a second SIGTERM has no effect."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._server, signal.SIGTERM)  # first, because all that follows needs memory or the server
        command = ["/bin/sh", "-c", KILL, str(self._server), str(GRACE)]
        os.posix_spawn(command[0], command, os.environ, setsid=True)
        log.error("the process of a model has died; the server ends, because only a new server can load it again")


def _children(server: int) -> set[int]:
    """The child processes of a server."""
    found: set[int] = set()
    for path in Path(f"/proc/{server}/task").glob("*/children"):  # the children of each thread
        with contextlib.suppress(OSError):  # the thread has just ended
            found.update(map(int, path.read_text().split()))
    return found


def _is_lost_model(process: int, server: int) -> bool:
    """Whether it was a model's process of this server and has died unnoticed by the server.

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
