"""Bundles of voices that come in parts.

A message of hundreds of megabytes stops whoever handles it: it is copied several times, each time at once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from voice_clone.errors import InvalidArgument, Overloaded
from voice_clone.speakers.operations import Import
from voice_clone.turn_pool import caller_now

SECONDS = 60.0  # that a bundle is kept without its next part
OVERHEAD = 4096  # bytes that a bundle counts beside its own


@dataclass(eq=False)
class _Begun:
    """What has come of a bundle."""

    caller: str
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    changed: float = 0.0


class PartialBundles:
    """The bundles of which parts have come. Thread-safe.

    A caller may have all the room. Where there is none, the caller that holds most gives the bundle it began last.

    Args:
        most: bytes of a bundle, and of all that are not whole.
        clock: seconds, monotonic.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._begun: dict[tuple[str | None, str], _Begun] = {}
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def add(self, given: Import) -> bytes | None:
        """The whole bundle, when its last part comes; None before.

        Raises:
            InvalidArgument: it is too large.
            Overloaded: there is no room, or a part before this one is not here.
        """
        if not given.part and not given.more:
            return given.bundle
        key = given.owner, given.name
        with self._lock:
            if not given.part:
                self._begun[key] = _Begun(caller_now.get().name)
            bundle = self._begun.get(key)
            if bundle is None or len(bundle.parts) != given.part:
                raise Overloaded("the parts of this bundle before this one are not here; send all of it again")
            bundle.parts.append(given.bundle)
            bundle.size += len(given.bundle)
            bundle.changed = self._clock()
            if not given.more or bundle.size > self._most:
                del self._begun[key]
            self._make_room()
            if given.more and key not in self._begun:
                if bundle.size > self._most:
                    raise InvalidArgument(f"the bundle is too large; at most {self._most} bytes are allowed")
                raise Overloaded("there is no room for this bundle now; try again later")
            self._look_later()
        return None if given.more else b"".join(bundle.parts)

    def close(self) -> None:
        """Forget all."""
        with self._lock:
            self._begun.clear()
            if self._timer is not None:
                self._timer.cancel()

    def _make_room(self) -> None:
        held: Counter[str] = Counter()
        for each in self._begun.values():
            held[each.caller] += each.size + OVERHEAD
        if held.total() > self._most:
            most = max(held, key=lambda caller: held[caller])
            del self._begun[next(key for key in reversed(self._begun) if self._begun[key].caller == most)]

    def _look_later(self) -> None:
        if self._begun and self._timer is None:
            self._timer = threading.Timer(SECONDS, self._forget_old)
            self._timer.daemon = True
            self._timer.start()

    def _forget_old(self) -> None:
        with self._lock:
            since = self._clock() - SECONDS
            self._begun = {key: each for key, each in self._begun.items() if each.changed > since}
            self._timer = None
            self._look_later()
