"""Limits: the size of a body, and the number of concurrent speeches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from voice_clone_client import Overloaded

from .errors import HTTPFailure

DRAIN_BYTES, DRAIN_SECONDS = 1 << 20, 1.0


class BodyLimit:
    """Middleware that refuses a request whose body is too large, by its header or while it is read.

    An answer that precedes the end of the body, such as this refusal, waits a moment for the rest of the body: a
    connection that is closed with unread bytes may lose the answer.

    Args:
        most: maximum bytes of a body.
        exceptions: other limits, by path.
    """

    def __init__(self, app: ASGIApp, most: int, exceptions: Mapping[str, int]) -> None:
        self._app = app
        self._most = most
        self._exceptions = exceptions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._exceptions.get(scope["path"], self._most)
        headers = dict(scope["headers"])
        header = headers.get(b"content-length", b"0")
        announced = int(header) if header.isdigit() else 0
        size, unread = 0, announced > 0 or b"transfer-encoding" in headers

        async def limited() -> Message:
            nonlocal size, unread
            if announced <= most:
                message = await receive()
                unread = unread and bool(message.get("more_body", False))
                size += len(message.get("body", b""))
                if size <= most:
                    return message
            raise HTTPFailure(
                413,
                f"the body is too large; at most {most} bytes are allowed",
                "body_too_large",
                headers={"Connection": "close"},  # the rest of the body is not read
            )

        async def answer(message: Message) -> None:
            nonlocal unread
            if unread:
                unread = False
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(_drain(receive), DRAIN_SECONDS)
            await send(message)

        await self._app(scope, limited, answer)


async def _drain(receive: Receive) -> None:
    """Read the rest of a body, up to `DRAIN_BYTES`."""
    drained = 0
    while drained < DRAIN_BYTES:
        message = await receive()
        drained += len(message.get("body", b""))
        if not message.get("more_body", False):
            return


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
