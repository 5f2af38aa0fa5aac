"""A model whose process has died takes its server along, since nothing else ends the requests that it had.

Triton 2.51 neither starts such a process again nor answers for it: who waits for it waits for ever, and the server
still calls itself ready (seen with the talker and with code2wav after a SIGKILL, as the kernel sends it when memory is
short). So the models watch each other's processes. When one is lost they ask the server to end, and end it if it does
not, as it may with requests that nobody will ever answer. Whoever runs the server starts it anew, with all its voices.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import subprocess
import threading
from pathlib import Path

NAME = "voice_clone"  # of the process of a model, at most 15 bytes; tells it from others, even when it has died
PERIOD = 2.0  # seconds
LOOKS = 15  # until the server's children are listed anew: that takes ten milliseconds, for it has 200 threads

GRACE = 10  # seconds in which streams that need nothing of a lost model may come to their end

# A process of its own, for the server unloads the models before it hangs.
END = 'kill -TERM "$0"; for second in $(seq "$1"); do sleep 1; kill -0 "$0" || exit; done; kill -KILL "$0"'

log = logging.getLogger(__name__)


class LostModels:
    """Watches the models of the server that started this process, which becomes one of them.

    Args:
        server: the process of the server.
        period: seconds between two looks.
    """

    def __init__(self, server: int, period: float = PERIOD) -> None:
        Path("/proc/self/comm").write_text(NAME, encoding="ascii")
        self._server = server
        self._period = period
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lost models", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no longer; to be called when this model is unloaded."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        children: set[int] = set()
        before: set[int] = set()
        for look in itertools.count():
            if self._closing.wait(self._period):
                return
            if look % LOOKS == 0:
                children = _children(self._server)
            lost = {child for child in children if _is_lost_model(child)}
            if lost & before:  # one that ends in peace is gone by the second look
                log.error("the process of a model has died; the server ends, for only a new one can bring it back")
                command = ["/bin/sh", "-c", END, str(self._server), str(GRACE)]
                subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
                return
            before = lost


def _children(server: int) -> set[int]:
    """The processes that a server has started."""
    found: set[int] = set()
    for path in Path(f"/proc/{server}/task").glob("*/children"):  # of the thread that started them
        with contextlib.suppress(OSError):  # a thread that has just ended
            found.update(map(int, path.read_text().split()))
    return found


def _is_lost_model(process: int) -> bool:
    """Whether it was a model's, and has died without its server's taking notice: a zombie, in the kernel's word."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return False
    name, _, rest = status.partition("(")[2].rpartition(")")
    return name == NAME and rest.split()[0] == "Z"
