"""Bundles of voices that come or go in parts.

A message of hundreds of megabytes would stop each process that copies it. Between its parts a bundle is in a file
without a name, which disappears with this process.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast

from voice_clone.errors import InvalidArgument, Overloaded
from voice_clone.speakers.operations import Export, Import, Operation
from voice_clone.turn_pool import caller_now

SECONDS = 600.0  # for which a bundle waits for its next part
MOST = 128  # bundles that are held at once, each an open file
PART = 4 << 20  # bytes of a bundle that are answered at once
_Key = tuple[type[Operation], str | None, str]


@dataclass(eq=False)
class _Begun:
    """The parts of a bundle that have come, or a whole bundle that is being sent."""

    caller: str
    file: BinaryIO = field(default_factory=lambda: cast(BinaryIO, TemporaryFile()))  # noqa: SIM115 - see `_drop`
    size: int = 0
    parts: int = 0
    changed: float = 0.0
    answer: dict[str, Any] = field(default_factory=dict)

    def whole(self) -> bytes:
        """Return the whole bundle and close the file."""
        with self.file, _on_disk():
            self.file.seek(0)
            return self.file.read()


class PartialBundles:
    """The bundles that are partly received, or partly sent. Thread-safe.

    A caller may take all the room. If none is left, the caller that holds most loses the bundle it began last. Among
    callers that hold equally much, the one that asks loses it.

    Args:
        most: bytes of a bundle. All bundles together may have twice as many.
        clock: seconds, monotonic.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._overhead = most, 2 * most // MOST
        self._clock = clock
        self._begun: dict[_Key, _Begun] = {}
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def add(self, given: Import) -> bytes | None:
        """Add a part. Returns the whole bundle with its last part, and None before.

        Raises:
            InvalidArgument: it is too large.
            Overloaded: there is no room, or a part before this one is missing.
        """
        if not given.part and not given.more:
            return given.bundle
        key = Import, given.owner, given.name
        with self._lock:
            if not given.part:
                self._begin(key, _Begun(caller_now.get().name))
            bundle = self._begun.get(key)
            if bundle is None or bundle.parts != given.part:
                raise Overloaded("the parts of this bundle before this one are not here; send all of it again")
            bundle.parts += 1
            bundle.size += len(given.bundle)
            bundle.changed = self._clock()
            try:
                if bundle.size > self._most:
                    raise InvalidArgument(f"the bundle is too large; at most {self._most} bytes are allowed")
                with _on_disk():
                    bundle.file.write(given.bundle)
                self._make_room(key)
            except BaseException:
                self._drop(key)
                raise
            if given.more:
                return None
            del self._begun[key]
        return bundle.whole()

    def read(self, export: Export, pack: Callable[[BinaryIO], dict[str, Any]]) -> tuple[dict[str, Any], bytes]:
        """Return the answer of `pack`, which writes a bundle, and a part of the bundle; all of it if no parts are
        wanted.

        Raises:
            Overloaded: there is no room, or the bundle is gone; and as `pack`.
        """
        key = Export, export.owner, export.id
        if not export.offset:
            made = _Begun(caller_now.get().name)
            try:
                with _on_disk():
                    made.answer = pack(made.file)
            except BaseException:
                made.file.close()
                raise
            made.size = made.answer["size"]
            if not export.id or made.size <= PART:
                return made.answer, made.whole()
        with self._lock:
            if not export.offset:
                self._begin(key, made)
                self._make_room(key)
            bundle = self._begun.get(key)
            if bundle is None:
                raise Overloaded("this bundle is not here any more; export it again")
            bundle.changed = self._clock()
            bundle.file.seek(min(export.offset, bundle.size))
            part = bundle.file.read(PART)
            if export.offset + len(part) >= bundle.size:
                self._drop(key)
        return bundle.answer, part

    def close(self) -> None:
        """Forget all."""
        with self._lock:
            for key in tuple(self._begun):
                self._drop(key)
            if self._timer is not None:
                self._timer.cancel()

    def _begin(self, key: _Key, bundle: _Begun) -> None:
        self._drop(key)
        self._begun[key] = bundle
        self._look_later()

    def _drop(self, key: _Key) -> None:
        if (bundle := self._begun.pop(key, None)) is not None:
            bundle.file.close()

    def _make_room(self, asking: _Key) -> None:
        """Drop bundles until the others have room.

        Raises:
            Overloaded: the bundle that asks is one of them.
        """
        held: Counter[str] = Counter()
        for each in self._begun.values():
            held[each.caller] += each.size + self._overhead
        own = self._begun[asking].caller
        while held.total() > 2 * self._most:
            most = max(held, key=lambda caller: (held[caller], caller == own))
            given = next(key for key in reversed(self._begun) if self._begun[key].caller == most)
            held[most] -= self._begun[given].size + self._overhead
            self._drop(given)
            if given == asking:
                raise Overloaded("there is no room for this bundle now; try again later")

    def _look_later(self) -> None:
        if self._begun and self._timer is None:
            self._timer = threading.Timer(SECONDS, self.forget_old)
            self._timer.daemon = True
            self._timer.start()

    def forget_old(self) -> None:
        with self._lock:
            since = self._clock() - SECONDS
            for key in [key for key, each in self._begun.items() if each.changed <= since]:
                self._drop(key)
            self._timer = None
            self._look_later()


@contextmanager
def _on_disk() -> Iterator[None]:
    """Write to a file during the block. Raises: Overloaded, the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Overloaded("the server has no room on its disk for this bundle; try again later") from None
        raise
