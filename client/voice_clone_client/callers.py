"""For whom calls are made: callers take turns on the server, so that none delays another for long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

Urgency = Literal["interactive", "next", "batch"]

_caller: ContextVar[str | None] = ContextVar("caller", default=None)
_urgency: ContextVar[Urgency | None] = ContextVar("urgency", default=None)


@contextmanager
def on_behalf_of(caller: str | None = None, urgency: Urgency | None = None) -> Iterator[None]:
    """Make the calls that begin in this block, or in tasks that it creates, for a caller.

    A server that has a write token believes it only beside that token.

    Args:
        caller: a text of at most 128 characters, such as the name of a user or a digest of it; None keeps the one that
            is set. Calls without one share their turns.
        urgency: `interactive`: a listener waits for the first audio. `next`: the listener has other audio to hear until
            then. `batch`: no listener waits. None keeps the one that is set; without any it is `interactive`.
    """
    before = _caller.set(caller or _caller.get()), _urgency.set(urgency or _urgency.get())
    try:
        yield
    finally:
        _caller.reset(before[0])
        _urgency.reset(before[1])


def set_caller(caller: str) -> None:
    """Make all calls that this task and those created by it begin from now on for a caller; see `on_behalf_of`."""
    _caller.set(caller)


def caller_here() -> str:
    """The caller for whom this task makes its calls; "" if none is set."""
    return _caller.get() or ""


@contextmanager
def in_time(first: bool) -> Iterator[None]:
    """Make the calls that begin in this block for a part of a speech: only the first one is urgent."""
    with on_behalf_of(urgency=None if first or _urgency.get() == "batch" else "next"):
        yield


def is_batch(request: Any) -> bool:
    """Return whether no listener waits for the answer to a request, as its parameters say."""
    return "urgency" in request.parameters and bool(request.parameters["urgency"].string_param == "batch")


def add_caller(request: Any) -> None:
    """Add the parameters that say for whom a request is."""
    for name, value in (("caller", _caller.get()), ("urgency", _urgency.get())):
        if value is not None:
            request.parameters[name].string_param = value
