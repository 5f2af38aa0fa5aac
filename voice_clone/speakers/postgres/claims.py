"""Work that one server of a fleet does for all: it holds an advisory lock of the database meanwhile.

The lock belongs to a connection of its own. It goes when the server's process dies, and 11 s after its machine is lost.
It only saves work: what comes of the work is checked when it is written, so a lock that is lost does no harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator

from voice_clone.errors import VoiceCloneError
from voice_clone.speakers.postgres.sessions import Session

log = logging.getLogger(__name__)


class Claims:
    """The locks that this server holds. Thread-safe.

    Args:
        session: of the locks, and of nothing else.
        seconds: for which the database is waited for.
        away: whether it is known not to answer.

    Attributes:
        refused: how often another server was at work.
    """

    def __init__(self, session: Session, seconds: float, away: Callable[[], bool]) -> None:
        self._session = session
        self._seconds = seconds
        self._away = away
        self._lock = threading.Lock()
        self.refused = 0

    @contextlib.contextmanager
    def claim(self, *what: object) -> Iterator[bool]:
        """Whether no other server is at this work, or nobody can tell."""
        number = int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:8], "big", signed=True)
        granted = self._ask("SELECT pg_try_advisory_lock(%s)", number)
        self.refused += not granted
        try:
            yield granted
        finally:
            if granted:
                self._ask("SELECT pg_advisory_unlock(%s)", number)

    def close(self) -> None:
        """Give all locks back."""
        with self._lock:
            self._session.end()

    def _ask(self, question: str, number: int) -> bool:
        if self._away():
            return True
        try:
            with self._lock, self._session.use(self._seconds) as connection:
                [(answer,)] = connection.execute(question, (number,), prepare=True).fetchall()
                return bool(answer)
        except VoiceCloneError as error:
            log.debug("an extraction begins without a lock: %s", error)
            return True
