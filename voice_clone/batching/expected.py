"""Listeners who are expected: batch work waits for them.

A listener is expected from the moment at which the prompt of a stream is begun, before the talker knows of it, until
the first audio has had the time to reach the caller. Until then nothing else takes the cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from hashlib import blake2b

NOTICE = 0.1  # seconds for which batch work waits for a stream whose prompt has been begun
ARRIVAL = 0.02  # seconds that the first audio takes to the caller
NAME_SIZE = 32  # characters


def name_of(stream_id: str) -> str:
    """The name of a stream in announcements: a digest, because who knows the id may end the speech."""
    return blake2b(stream_id.encode(), digest_size=NAME_SIZE // 2).hexdigest()


class Expected:
    """The streams of listeners who are expected, each until some time; for one thread.

    Streams that are announced and do not come, because their requests are refused, must not stop batch work for good.
    So after one of them no announcement counts until a stream has come.

    Args:
        news: returns the names, by `name_of`, of the streams that were announced since its last call. Each is expected
            for `NOTICE`.
        clock: seconds, monotonic.
    """

    def __init__(self, news: Callable[[], Iterable[str]], clock: Callable[[], float] = time.monotonic) -> None:
        self._news = news
        self._clock = clock
        self._announced: dict[str, float] = {}  # by name: until when
        self._until: dict[str, float] = {}  # others
        self._trusted = True

    def add(self, stream_id: str, seconds: float) -> None:
        """A stream is expected for so long from now on."""
        now = self._clock()
        self._until = {name: until for name, until in self._until.items() if until > now}
        self._until[name_of(stream_id)] = now + seconds

    def come(self, stream_id: str) -> bool:
        """A stream has come, or its next sign; returns whether it was expected."""
        self._look()
        self._trusted = True
        name = name_of(stream_id)
        return max(self._announced.pop(name, 0.0), self._until.pop(name, 0.0)) > self._clock()

    def seconds(self) -> float:
        """For how long streams are expected; 0.0: there is none."""
        self._look()
        return max(0.0, max([*self._announced.values(), *self._until.values()], default=0.0) - self._clock())

    def _look(self) -> None:
        news, now = self._news(), self._clock()
        missed = [name for name, until in self._announced.items() if until <= now]
        for name in missed:
            del self._announced[name]
        self._trusted = self._trusted and not missed
        if self._trusted:
            self._announced.update(dict.fromkeys(news, now + NOTICE))
