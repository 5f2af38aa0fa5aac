"""The bodies of requests: how large one may be, how many bytes all may hold, and what JSON may contain."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import HTTPFailure
from .json_bounds import JsonBounds

DRAIN_BYTES, DRAIN_SECONDS = 1 << 20, 1.0
SMALL = 64 << 10
"""Bytes of a body that pass without a place in the budget."""
_STREAMED = (b"multipart/form-data", b"application/octet-stream")  # read piece by piece; no JSON


class Budget:
    """The bytes that all larger bodies together may hold.

    Args:
        most: bytes. One body alone may be larger, so that no limit of a single body is out of reach.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    def take(self, size: int, own: int) -> bool:
        """Reserve `size` more bytes for a body that has `own`; false if they are not free."""
        if self.held + size > self._most and self.held > own:
            return False
        self.held += size
        return True

    def give(self, size: int) -> None:
        """Free them."""
        self.held -= size


class BodyLimit:
    """Middleware that refuses a request whose body is too large, by its header or while it is read; one for whose body
    there is no room; and JSON beyond the bounds of `JsonBounds`.

    A JSON body reaches the application in one piece. It is read when the application asks for it, after the key was
    checked. An answer that precedes the end of the body waits a moment for the rest of the body: a connection that is
    closed with unread bytes may lose the answer.

    Args:
        most: maximum bytes of a body.
        exceptions: other limits, by path.
        budget: of all bodies.
        retry_after: seconds, for those that find no room.
    """

    def __init__(
        self, app: ASGIApp, most: int, exceptions: Mapping[str, int], budget: Budget, retry_after: int = 1
    ) -> None:
        self._app = app
        self._most = most
        self._exceptions = exceptions
        self._budget = budget
        self._retry_after = retry_after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        body = _Body(self._exceptions.get(scope["path"], self._most), self._budget, self._retry_after, receive, headers)

        async def answer(message: Message) -> None:
            await body.drain()
            await send(message)

        try:
            await self._app(scope, body.receive, answer)
        finally:
            body.release()


class _Body:
    """The body of one request."""

    def __init__(
        self, most: int, budget: Budget, retry_after: int, receive: Receive, headers: Mapping[bytes, bytes]
    ) -> None:
        self._most = most
        self._budget = budget
        self._retry_after = retry_after
        self._receive = receive
        announced = headers.get(b"content-length", b"0")
        self._announced = int(announced) if announced.isdigit() else 0
        self._unread = self._announced > 0 or b"transfer-encoding" in headers
        self._json = not headers.get(b"content-type", b"").lower().startswith(_STREAMED)
        self._size = 0  # bytes that were read
        self._held = 0  # bytes of the budget

    async def receive(self) -> Message:
        """The next message for the application; raises HTTPFailure."""
        if self._announced > self._most:
            raise self._too_large()
        self._hold(self._announced)
        if not self._json or not self._unread:
            return await self._next()
        whole, bounds = bytearray(), JsonBounds()
        while True:
            message = await self._next()
            if message["type"] != "http.request":
                return message
            piece = message.get("body", b"")
            bounds.feed(piece)
            whole += piece
            if not message.get("more_body", False):
                return {"type": "http.request", "body": bytes(whole), "more_body": False}

    async def _next(self) -> Message:
        message = await self._receive()
        self._unread = self._unread and bool(message.get("more_body", False))
        self._size += len(message.get("body", b""))
        if self._size > self._most:
            raise self._too_large()
        self._hold(self._size)
        return message

    def _hold(self, size: int) -> None:
        """Hold this many bytes of the budget."""
        if size <= max(SMALL, self._held):
            return
        if not self._budget.take(size - self._held, self._held):
            message = "the gateway has no room for this body now; try again later"
            headers = {"Connection": "close", "Retry-After": str(self._retry_after)}
            raise HTTPFailure(503, message, "overloaded", "server_error", headers=headers)
        self._held = size

    def release(self) -> None:
        """Free what the body holds."""
        self._budget.give(self._held)
        self._held = 0

    async def drain(self) -> None:
        """Read the rest, up to `DRAIN_BYTES`, for at most `DRAIN_SECONDS`; only the first call does."""
        if self._unread:
            self._unread = False
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._read_rest(), DRAIN_SECONDS)

    async def _read_rest(self) -> None:
        drained = 0
        while drained < DRAIN_BYTES:
            message = await self._receive()
            drained += len(message.get("body", b""))
            if not message.get("more_body", False):
                return

    def _too_large(self) -> HTTPFailure:
        return HTTPFailure(
            413,
            f"the body is too large; at most {self._most} bytes are allowed",
            "body_too_large",
            headers={"Connection": "close"},  # the rest of the body is not read
        )
