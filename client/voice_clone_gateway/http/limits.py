"""The number of concurrent speeches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from voice_clone_client import Overloaded


class Gate:
    """Counts the running speeches, and refuses more than `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.live = 0

    @contextmanager
    def pass_through(self) -> Iterator[None]:
        """Occupy a place during the `with` block.

        Raises:
            Overloaded: all places are occupied.
        """
        if self.live >= self._most:
            raise Overloaded(f"{self._most} speeches run already, the maximum of this gateway; try again later")
        self.live += 1
        try:
            yield
        finally:
            self.live -= 1
