"""Ends a tritonserver that has no work, to give its memory back, and says when there is work again."""

from __future__ import annotations

import re
import time

from voice_clone_program.server_lock import ServerLock

from voice_clone_server import addresses
from voice_clone_server.gateway_process import SETTLE
from voice_clone_server.triton_server import TritonServer

LOOKS = 10.0  # seconds between two looks at the metrics at most; a tenth of the idle time if that is shorter
# What changes with the work of any caller, also of one that the gateway does not know. It is no work to list voices or
# families, for which speaker_cache also asks the talkers and code2wavs what they keep.
_WORK = re.compile(
    r'^(?:nv_inference_request_(?:success|failure)\{model="(?!speaker_cache"|\w+_(?:talker|code2wav)")'
    r"|voice_clone_talker_streams_total|voice_clone_speaker_cache_(?:uploads|deletes|extractions)_total).*",
    re.MULTILINE,
)
_RUNNING = re.compile(r"^voice_clone_talker_(?:live|waiting)_streams\{.*\} [1-9]", re.MULTILINE)


class Idleness:
    """Whether a server has work.

    Args:
        server: that its gateway needs.
        seconds: without work after which it is ended.

    Attributes:
        path: of the lock that the gateway shares while it has work.
        ended: whether the server was ended, and is not ready again.
    """

    def __init__(self, server: TritonServer, seconds: float) -> None:
        self.path = server.scratch / "lock"
        self.ended = False
        self._server, self._seconds = server, seconds
        self._lock = ServerLock(self.path, make=True)
        self._seen: list[str] = []
        self._since = self._next_look = self._settled = 0.0

    @property
    def settled(self) -> bool:
        """Whether the server runs, and has done so for some seconds if it was ended before."""
        return not self.ended and time.time() >= self._settled

    @property
    def wanted(self) -> bool:
        """Whether there is work for a server that was ended."""
        return self._lock.asked

    def end(self) -> bool:
        """End the server, if it has had no work for long, and return whether; requests then wait until `started`."""
        if self.ended or not self._is_long() or not self._lock.take():
            return False
        self.ended = True
        self._server.end()
        return True

    def started(self) -> None:
        """Note that the server is ready again."""
        self._since, self._next_look, self.ended = time.time(), 0.0, False
        self._settled = self._since + SETTLE
        self._lock.free()

    def close(self) -> None:
        """Let no request wait any longer."""
        self._lock.close()

    def _is_long(self) -> bool:
        now = time.time()
        if now < self._next_look:
            return False
        self._next_look = now + min(LOOKS, self._seconds / 10)
        try:
            text = addresses.fetch(self._server.metrics, timeout=5.0).decode(errors="replace")
        except OSError:  # it ends by itself, or stands still
            text = ""
        seen = sorted(_WORK.findall(text))
        if seen != self._seen or not text or _RUNNING.search(text):
            self._seen, self._since = seen, now
        return now - max(self._since, self._lock.last_work) >= self._seconds
