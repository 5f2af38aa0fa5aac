"""What one caller may take: bytes of a body, and speeches at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from voice_clone_client import Overloaded

from .http_errors import HTTPFailure

DRAIN_BYTES, DRAIN_SECONDS = 1 << 20, 1.0


class BodyLimit:
    """Middleware that ends a request whose body is too large: by its header at once, else when it has grown so far.

    Whatever is answered before the body was read, this or another refusal, waits a moment for the rest of it: a
    connection that is closed with unread bytes can cost the client the answer.

    Args:
        most: bytes of a body.
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
                headers={"Connection": "close"},  # the rest of it is not wanted
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
    """Read on, for so long as it is little."""
    drained = 0
    while drained < DRAIN_BYTES:
        message = await receive()
        drained += len(message.get("body", b""))
        if not message.get("more_body", False):
            return


class Gate:
    """Counts the speeches that run, and refuses more than `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.live = 0

    @contextmanager
    def pass_through(self) -> Iterator[None]:
        """Hold a place for the body of the `with`.

        Raises:
            Overloaded: all are taken.
        """
        if self.live >= self._most:
            raise Overloaded(f"{self._most} speeches run already, as many as this gateway allows; try again later")
        self.live += 1
        try:
            yield
        finally:
            self.live -= 1
