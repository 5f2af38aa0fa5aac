"""The server's default family. All threads of a synchronous client together ask for it once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from . import responses
from .errors import DeadlineExceeded, VoiceCloneError


class DefaultFamily:
    """The name of the family, once it is known. Thread-safe.

    Args:
        ask: returns the families of the server, its default first; takes the seconds that it may need, None for any.
    """

    def __init__(self, ask: Callable[[float | None], list[str]]) -> None:
        self._ask = ask
        self._name: str | None = None  # once it is known
        self._lock = threading.Lock()  # held by the thread that asks

    def get(self, seconds: float | None) -> str:
        """Return the name; ask for it if it is not known.

        Args:
            seconds: that this may take; None sets no limit.

        Raises:
            VoiceCloneError: the server did not answer it.
        """
        if self._name is not None:
            return self._name
        until = None if seconds is None else time.monotonic() + seconds
        if not self._lock.acquire(timeout=-1 if seconds is None else seconds):
            raise DeadlineExceeded("the server did not answer in time")
        try:
            if self._name is None:  # no other thread got it meanwhile
                left = None if until is None else until - time.monotonic()
                self._name = responses.default_model(self._ask(left))
            return self._name
        except VoiceCloneError as error:
            raise responses.without_default(error) from None
        finally:
            self._lock.release()
