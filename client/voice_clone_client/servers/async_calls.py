"""Helpers that wait for calls of grpc.aio and for tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any, TypeVar

import grpc

from ..errors import from_status
from . import channel

_HERE = "Locally cancelled by application!"  # grpc's words for a call that this process has cancelled

T = TypeVar("T")


async def answer_of(call: Any, answer: Awaitable[T]) -> T:
    """Wait for what `call` answers.

    Raises:
        ConnectionFailed: the server has cancelled the call. gRPC raises for it what a cancelled task raises.
        grpc.RpcError, asyncio.CancelledError
    """
    try:
        return await answer
    except asyncio.CancelledError:
        if call.done() and (details := await call.details()) != _HERE:
            raise from_status("CANCELLED", details or "") from None
        raise


def is_cancelled() -> bool:
    """Return whether the current task was cancelled. Python 3.10 does not know it: always False.

    If not, a CancelledError comes from a call that was cancelled.
    """
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is not None and cancelling() > 0


async def let_end(call: Any, messages: AsyncIterator[Any]) -> None:
    """Wait for the end of a stream after its last message; see `channel.let_end`."""

    async def rest() -> None:
        async for _ in messages:
            pass

    try:
        await asyncio.wait_for(rest(), channel.END_SECONDS)
    except (grpc.RpcError, asyncio.TimeoutError):
        call.cancel()


def quiet_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task. asyncio does not log its error if no other task awaits it."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task
