"""Turns between callers: who is next wherever requests wait.

Start-time fair queueing (Goyal, Vin and Cheng 1996; for language models Sheng et al. 2024, "Virtual Token Counter").
Each caller has a virtual time, the seconds of service that it has got. The caller with the least one is next. A caller
that comes back begins at the least virtual time of those that wait or run, so being idle saves nothing up. Of two
callers that always have work, neither gets more than two turns' service ahead of the other.

The requests of one caller keep their order, and a caller alone is served as by a plain queue.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, Literal, TypeVar, get_args

from voice_clone.errors import InvalidArgument

T = TypeVar("T", bound=Hashable)

Urgency = Literal["interactive", "next", "batch"]

TOKEN_PARAMETER = "x-voice-token"
"""The request parameter, a forwarded header, with the token of a server that has one."""
AGED = 30.0  # seconds; batch work that has waited so long counts as interactive
MOST_CALLERS = 1024  # that have turns of their own; further ones share a few
SHARED = 16
MAX_NAME = 128  # characters


@dataclass(frozen=True)
class Caller:
    """For whom a request is, and how urgent it is.

    Attributes:
        name: of the caller; requests of one name share their turns.
        urgency: `interactive`: a listener waits for the first audio. `next`: the listener has audio to hear until then.
            `batch`: no listener waits; interactive requests go first.

    Raises:
        InvalidArgument: on construction, if one of them is no such text.
    """

    name: str = ""
    urgency: Urgency = "interactive"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or len(self.name) > MAX_NAME:
            raise InvalidArgument(f"the parameter caller must be a text of at most {MAX_NAME} characters")
        if self.urgency not in get_args(Urgency):
            raise InvalidArgument(f"the parameter urgency must be one of {', '.join(get_args(Urgency))}")

    @property
    def batch(self) -> bool:
        """Whether no listener waits for it."""
        return self.urgency == "batch"


PLAIN = Caller()
"""A caller without a name."""


def may_have_more(held: Iterable[str], caller: str, most: int) -> bool:
    """Whether a caller may have one more where `most` are for all: if they are held, only one with less than its share.

    Args:
        held: the caller of each that is held.
    """
    count = Counter(held)
    return count.total() < most or count[caller] < max(1, most // len({*count, caller}))


@dataclass(eq=False)
class _Class(Generic[T]):
    """The state of one caller's name."""

    virtual: float = 0.0
    interactive: deque[T] = field(default_factory=deque)
    batch: deque[T] = field(default_factory=deque)
    running: int = 0

    @property
    def waiting(self) -> int:
        return len(self.interactive) + len(self.batch)

    @property
    def active(self) -> bool:
        """Whether any waits or has a turn."""
        return bool(self.interactive or self.batch or self.running)


class Turns(Generic[T]):
    """Requests that wait for their turns, and those that have theirs. Not thread-safe.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._classes: dict[str, _Class[T]] = {}
        self._waiting: dict[T, tuple[str, Caller, float]] = {}  # name of the class, caller, since when; by arrival
        self._running: dict[T, tuple[str, Caller]] = {}
        self._floor = 0.0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        """Those that wait, in the order in which they came."""
        return iter(list(self._waiting))

    @property
    def active(self) -> int:
        """Callers that wait or have a turn."""
        return sum(each.active for each in self._classes.values())

    def put(self, item: T, caller: Caller, first: bool = False) -> None:
        """A request that waits for its turn from now on; `first`: before others of its caller, as it had one before."""
        self._forget_idle()
        name = self._name(caller)
        found = self._classes.setdefault(name, _Class())
        if not found.active:
            found.virtual = max(found.virtual, self._floor)
        line = found.batch if caller.batch else found.interactive
        (line.appendleft if first else line.append)(item)
        self._waiting[item] = name, caller, self._clock()

    def take(self, allowed: Callable[[T, int], bool] = lambda _item, _running: True) -> T | None:
        """The next request, which has its turn from now on. None: none waits, or none that may have one.

        Args:
            allowed: whether a request may have its turn now, with so many turns of its caller running.
        """
        for item in self._heads():
            name, caller, _ = self._waiting[item]
            found = self._classes[name]
            if allowed(item, found.running):
                self._unlink(item)
                found.running += 1
                self._running[item] = name, caller
                return item
        return None

    def may_take(self, allowed: Callable[[T, int], bool]) -> bool:
        """Whether `take` would return a request."""
        return any(allowed(item, self._classes[self._waiting[item][0]].running) for item in self._heads())

    def charge(self, item: T, seconds: float) -> None:
        """A request with a turn has got so many seconds of service."""
        self._classes[self._running[item][0]].virtual += seconds

    def leave(self, item: T) -> None:
        """A request has ended or waits no more. Does nothing if it is not here."""
        if item in self._waiting:
            self._unlink(item)
        elif item in self._running:
            name, _ = self._running.pop(item)
            self._classes[name].running -= 1

    def push_out(self, caller: Caller) -> T | None:
        """The request that gives its place to a new one of `caller`, where no more may wait.

        It is the newest of the caller that has most waiting, batch work before other. None: that is `caller` itself.
        """
        mine = self._classes.get(self._name(caller))
        most = max(self._classes.values(), key=lambda each: each.waiting, default=None)
        if most is None or most is mine or most.waiting <= 1 + (mine.waiting if mine is not None else 0):
            return None
        return (most.batch or most.interactive)[-1]

    def rank(self, item: T) -> tuple[bool, float]:
        """Of a request with a turn: of two, the lower one is served first."""
        name, caller = self._running[item]
        return caller.batch, self._classes[name].virtual

    def names(self) -> dict[T, str]:
        """The name of each request with a turn, under which it shares its turns."""
        return {item: name for item, (name, _) in self._running.items()}

    def _heads(self) -> list[T]:
        """The first request of each caller, the next one first."""
        now = self._clock()

        def key(item: T) -> tuple[bool, float]:
            _, caller, since = self._waiting[item]
            return caller.batch and now - since <= AGED, since

        heads = []
        for found in self._classes.values():
            lines = [line[0] for line in (found.interactive, found.batch) if line]
            if lines:
                head = min(lines, key=key)
                late, since = key(head)
                heads.append((late, found.virtual, since, head))
        return [head for *_, head in sorted(heads, key=lambda each: each[:3])]

    def _unlink(self, item: T) -> str:
        """Take a request out of its line; returns the name of its caller."""
        name, caller, _ = self._waiting.pop(item)
        found = self._classes[name]
        line = found.batch if caller.batch else found.interactive
        if line[0] is item:
            line.popleft()
        else:
            line.remove(item)
        return name

    def _forget_idle(self) -> None:
        """Raise the floor, below which no caller begins, and forget the callers that are not above it any more."""
        active = [each.virtual for each in self._classes.values() if each.active]
        behind = active or [each.virtual for each in self._classes.values()]
        self._floor = max(self._floor, min(behind) if active else max(behind, default=0.0))
        self._classes = {
            name: each for name, each in self._classes.items() if each.active or each.virtual > self._floor
        }

    def _name(self, caller: Caller) -> str:
        """Under which a caller shares its turns: its own name, but where there are very many."""
        if caller.name in self._classes or len(self._classes) < MOST_CALLERS:
            return caller.name
        digest = blake2b(caller.name.encode("utf-8", "replace"), digest_size=2).digest()
        return f"shared {int.from_bytes(digest, 'big') % SHARED}"
