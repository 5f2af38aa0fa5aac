"""The bodies of requests: how large one may be, how many bytes all may hold, and how one is parsed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import HTTPFailure
from .json_bounds import parse_json

DRAIN_BYTES, DRAIN_SECONDS = 1 << 20, 1.0
SMALL = 64 << 10
"""Bytes of a body that pass without a place in the budget."""
MAX_FORM_FIELDS = 16
MAX_FORM_BYTES = 1 << 20
"""Of a form without files."""


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
    there is no room; and a body that is compressed.

    A body is read when the application asks for it, after the key was checked. An answer that precedes the end of the
    body waits a moment for the rest of the body: a connection that is closed with unread bytes may lose the answer.

    Args:
        most: maximum bytes of a body.
        exceptions: other limits, by path.
        budget: of all bodies.
        retry_after: seconds, for those that find no room.
    """

    def __init__(
        self, app: ASGIApp, most: int, exceptions: Mapping[str, int], budget: Budget, retry_after: int
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
        most = self._exceptions.get(scope["path"].rstrip("/"), self._most)
        body = _Body(most, self._budget, self._retry_after, receive, headers)

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
        self._coding = headers.get(b"content-encoding", b"").strip().lower()
        self._size = 0  # bytes that were read
        self._held = 0  # bytes of the budget

    async def receive(self) -> Message:
        """The next message for the application; raises HTTPFailure."""
        if self._announced > self._most:
            raise self._too_large()
        if self._unread and self._coding not in (b"", b"identity"):
            text = f"the body is compressed ({self._coding.decode('latin-1')}); send it as it is"
            raise HTTPFailure(415, text, "compressed_body", headers={"Accept-Encoding": "identity"})
        self._hold(self._announced)
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


class BoundedRequest(Request):
    """A request whose JSON and forms are parsed within bounds, whatever the headers say of them."""

    async def json(self) -> Any:
        """The value of the body; see `parse_json`."""
        return await parse_json(await self.body(), "body")

    async def form(self, **limits: Any) -> FormData:  # type: ignore[override] # not used as a context manager
        """The fields of the body; each comes once.

        Raises:
            HTTPFailure: 400, 413 or 415, it is no form in UTF-8, too large, or has a field twice.
        """
        kind, options = parse_options_header(self.headers.get("content-type"))
        charset = options.get(b"charset", b"utf-8").decode("latin-1")
        if charset.lower() not in ("utf-8", "utf8", "us-ascii"):
            raise HTTPFailure(415, f"the form is in {charset[:40]!r}; encode it as UTF-8", "invalid_encoding")
        if kind == b"application/x-www-form-urlencoded" and self._form is None:
            self._form = _fields(await self.body())
        form = await super().form(**{**limits, "max_files": 1, "max_fields": MAX_FORM_FIELDS})
        names = [name for name, _ in form.multi_items()]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            await form.close()
            message = f"{twice}: the form has this field twice; give it once"
            raise HTTPFailure(400, message, "duplicate_field", param=twice)
        return form


def _fields(body: bytes) -> FormData:
    """The fields of a form without files."""
    if len(body) > MAX_FORM_BYTES:
        message = f"the form has {len(body)} bytes; at most {MAX_FORM_BYTES} are allowed without multipart/form-data"
        raise HTTPFailure(413, message, "body_too_large")
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FORM_FIELDS)
    except UnicodeDecodeError:
        raise HTTPFailure(400, "the form is not UTF-8; encode its text as UTF-8", "invalid_encoding") from None
    except ValueError:
        message = f"the form has too many fields; at most {MAX_FORM_FIELDS} are allowed"
        raise HTTPFailure(400, message, "invalid_argument") from None
    return FormData([*fields])
