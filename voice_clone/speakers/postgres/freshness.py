"""How old memory is: one look at the store's changes serves all requests that wait for one.

A request must see every change acknowledged before it began. So a look that began after it did is enough, and all that
wait meanwhile share the next one. When the store does not answer, requests stop waiting for it: memory serves until it
is too old, while a thread looks again and again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from voice_clone.errors import Overloaded, VoiceCloneError
from voice_clone.speakers.postgres.errors import CLOSED

IDLE_PERIOD, AWAY_PERIOD = 1.0, 0.25  # seconds between looks that nobody asks for

log = logging.getLogger(__name__)


class Freshness:
    """Looks when it is asked to, and once a second.

    Args:
        look: brings memory up to what the store was when it was called; one call at a time.
        bound: seconds for which memory serves without the store; 0: not at all.
    """

    def __init__(self, look: Callable[[], None], bound: float) -> None:
        self._look = look
        self._bound = bound
        self._turn = threading.Condition()
        self._looking = False
        self._begun = self._ended = 0  # looks
        self._fresh_at = time.monotonic()
        self._away = False
        self.failures = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-changes", daemon=True)
        self._thread.start()

    @property
    def away(self) -> bool:
        """Whether the store did not answer the last look."""
        return self._away

    @property
    def age(self) -> float:
        """Seconds since memory was exact."""
        return time.monotonic() - self._fresh_at

    @property
    def looks(self) -> int:
        """Their number."""
        return self._ended

    def ensure(self) -> None:
        """Return when memory has all changes that were made before this call, or may serve without.

        Raises:
            Overloaded: the store does not answer, and memory is older than it may be; or it is closed.
        """
        if not self._away:
            self._take_part()
        if self._away and self.age >= self._bound:
            raise Overloaded("the voice store cannot be reached; try again later")

    def close(self) -> None:
        """Stop looking. Returns when no look is under way: its connection may then be closed."""
        self._closing.set()
        self._thread.join()
        with self._turn:
            while self._looking:
                self._turn.wait()

    def _take_part(self) -> None:
        """Look, or wait for a look that began after this call did."""
        with self._turn:
            wanted, waited = self._begun + 1, self._looking
            while self._looking and self._ended < wanted:
                self._turn.wait()
            if self._ended >= wanted or (waited and self._away):  # a look has just waited for it in vain
                return
            if self._closing.is_set():
                raise Overloaded(CLOSED)
            self._looking = True
            self._begun += 1
        began, away = time.monotonic(), True
        try:
            self._look()
            away = False
        except Exception as error:  # whatever a damaged database makes of a look
            if not self._away:
                unknown = not isinstance(error, VoiceCloneError)
                log.warning(
                    "the voice store is away, memory serves for %g s at most: %s", self._bound, error, exc_info=unknown
                )
        finally:
            with self._turn:
                if away:
                    self.failures += 1
                else:
                    self._fresh_at = began
                    if self._away:
                        log.info("the voice store is back")
                self._away = away
                self._looking = False
                self._ended = self._begun
                self._turn.notify_all()

    def _run(self) -> None:
        while not self._closing.wait(AWAY_PERIOD if self._away else IDLE_PERIOD):
            if self._away or self.age > IDLE_PERIOD:
                try:
                    self._take_part()
                except Overloaded:  # it is closed
                    return
                except Exception:
                    log.exception("the changes of the voice store could not be read")
