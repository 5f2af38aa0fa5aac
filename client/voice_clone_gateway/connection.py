"""Work that is worth doing only as long as somebody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

from .http_errors import CLIENT_CLOSED, HTTPFailure

T = TypeVar("T")


class ClientGone(HTTPFailure):
    """The client went away before it had its answer; nobody will read this one."""

    slug = "client_gone"

    def __init__(self) -> None:
        super().__init__(CLIENT_CLOSED, "the client went away before its answer was complete", self.slug)


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled at once when the client goes away.

    Args:
        receive: of the request, whose body was read.

    Raises:
        ClientGone: the client went away. Also what `work` raises.
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
        await asyncio.wait((task, gone))  # so that whatever `work` holds is given back when this returns
        if not task.cancelled():
            task.exception()  # seen: it came too late for anybody


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
