"""Work that ends when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

from .errors import CLIENT_CLOSED, HTTPFailure

T = TypeVar("T")


class ClientGone(HTTPFailure):
    """The client disconnected before its answer was complete, so this one is not read."""

    slug = "client_gone"

    def __init__(self) -> None:
        super().__init__(CLIENT_CLOSED, "the client disconnected before its answer was complete", self.slug)


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects.

    Args:
        receive: of a request whose body was read.

    Raises:
        ClientGone: the client disconnected. Also the errors of `work`.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.wait((task, gone))  # `work` has released its resources when this returns
        if not task.cancelled():
            task.exception()  # marks it as retrieved; asyncio would log it


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
