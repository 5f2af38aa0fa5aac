"""The streams between a talker and code2wav: their ids, their open requests, and last chunks on their way.

A caller may know the public id of its stream, which `info` names, and can call code2wav itself. The id between the two
models ends with the talker's name and a secret, so a caller cannot put chunks into a stream of a talker. By its form
code2wav sees that a stream comes from a talker, inside an ensemble: then an error has to wait for the stream's final
chunk (`codec.worker` says why). By the name it finds the talker, for several may share one code2wav. A caller that
copies the form for a stream of its own gets its errors later, which affects only itself.

Where the talker's process dies, Triton 2.51 leaves its streams without an end. The requests that code2wav holds open
are then the only way to their listeners: see `Model._lost`. So the newest request of each stream stays open until the
next one comes.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # at run time it brings Triton, which exists only inside a model's process
    from voice_clone.triton.responder import Responder

_SECRET = re.compile(r"\.([a-z][a-z0-9_]{0,63}_talker)-[0-9a-f]{32}\Z")


def with_secret(stream_id: str, talker: str) -> str:
    """The id of a stream between its talker, a model of this name, and code2wav."""
    return f"{stream_id}.{talker}-{secrets.token_hex(16)}"


def talker_of(stream_id: str) -> str | None:
    """The name of the talker that made this id; None if none did."""
    found = _SECRET.search(stream_id)
    return None if found is None else found[1]


def public_id(stream_id: str) -> str:
    """The id without its secret."""
    return _SECRET.sub("", stream_id)


REQUEST_PATIENCE = 5.0  # seconds; a talker sends something every 0.04 s


class OpenRequests:
    """The open request of each stream that is not over. Thread-safe.

    Args:
        patience: seconds after which one ends though nothing follows it.
    """

    def __init__(self, patience: float = REQUEST_PATIENCE) -> None:
        self._patience = patience
        self._held: dict[str, tuple[float, Responder]] = {}  # by stream, the oldest first
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="open requests", daemon=True)
        self._thread.start()

    def hold(self, stream_id: str, request: Responder) -> None:
        """Hold a stream's newest request, and end the one before."""
        with self._lock:
            before = self._held.pop(stream_id, None)
            self._held[stream_id] = time.monotonic(), request
        if before is not None:
            before[1].end()

    def hold_unless_newer(self, stream_id: str, request: Responder) -> None:
        """As `hold` for a request whose work took a while; one that came meanwhile counts as newer."""
        with self._lock:
            newer = stream_id in self._held
            if not newer:
                self._held[stream_id] = time.monotonic(), request
        if newer:
            request.end()

    def end(self, stream_id: str) -> None:
        """End a stream's request, if one is held: the stream is over."""
        with self._lock:
            held = self._held.pop(stream_id, None)
        if held is not None:
            held[1].end()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._end_until(time.monotonic())

    def _run(self) -> None:
        while not self._closing.wait(self._patience / 2):
            self._end_until(time.monotonic() - self._patience)

    def _end_until(self, when: float) -> None:
        ended = []
        with self._lock:
            while self._held and next(iter(self._held.values()))[0] <= when:
                ended.append(self._held.pop(next(iter(self._held)))[1])
        for each in ended:
            each.end()


ANSWER_PATIENCE = 5.0  # seconds; later, a last chunk without an answer is lost, or went to a caller of the talker


class LastChunks:
    """Counts last chunks that were sent and not yet answered; a server that stops waits for them. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent: dict[str, float] = {}  # by stream, the oldest first
        self._changed = threading.Condition()

    def sent(self, stream_id: str) -> None:
        """A stream's last chunk is about to be sent."""
        with self._changed:
            self._forget()
            self._sent.pop(stream_id, None)
            self._sent[stream_id] = self._clock()

    def answered(self, stream_id: str) -> None:
        """The listener has it, or has left."""
        with self._changed:
            self._sent.pop(stream_id, None)
            self._changed.notify_all()

    def wait(self) -> bool:
        """Wait until all have an answer; False if some have none in time."""
        with self._changed:
            while self._sent:
                newest = next(reversed(self._sent.values()))
                if not self._changed.wait_for(lambda: not self._sent, newest + ANSWER_PATIENCE - self._clock()):
                    return False
        return True

    def _forget(self) -> None:
        """Chunks that never get an answer must not fill the memory."""
        while self._sent and self._clock() - next(iter(self._sent.values())) > ANSWER_PATIENCE:
            del self._sent[next(iter(self._sent))]
