"""The bodies of requests: how large and how slow one may be, and how one is parsed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .account import Account, Full, Item
from .encoding import decoded, urlencoded
from .errors import HTTPFailure
from .json_bounds import parse_json
from .keys import caller_of
from .limits import seconds_for

DRAIN_BYTES, DRAIN_SECONDS = 1 << 20, 1.0
PIECE = 64 << 10
"""Bytes of an answer that are handed over at once."""
MAX_FORM_FIELDS = 16
MAX_FILES = 25
"""Of a field that takes several; else a form has one."""
MAX_FORM_BYTES = 1 << 20
"""Of a form without files."""


class BodyLimit:
    """Middleware that refuses a request whose body is too large, by its header or while it is read; one that comes too
    slowly; one for which there is no room; and a body that is compressed. It opens the item of the account for each
    request and WebSocket: `held` in its state.

    A body is read when the application asks for it, after the key was checked. An answer that precedes the end of the
    body waits a moment for the rest of the body: a connection that is closed with unread bytes may lose the answer.
    A large answer is sent in pieces, so that a slow reader has no copy of it. It is held until it is sent. With
    `in_parts` in the state, the application holds what it has of the answer.

    Args:
        most: maximum bytes of a body.
        exceptions: other limits, by path.
        account: of all bytes that are held.
    """

    def __init__(self, app: ASGIApp, most: int, exceptions: Mapping[str, int], account: Account) -> None:
        self._app = app
        self._most = most
        self._exceptions = exceptions
        self._account = account

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        state, caller = scope["state"], caller_of("", scope)
        if scope["type"] == "websocket":
            state["held"] = state["connection"].begin(self._account, caller)
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        most = min(self._exceptions.get(scope["path"].rstrip("/"), self._most), self._account.total)
        began = refused = False

        async def answer(message: Message) -> None:
            nonlocal began, refused
            if refused:
                return
            began = True
            await body.drain()
            if message["type"] == "http.response.start" and scope["method"] != "HEAD" and "in_parts" not in state:
                length = dict(message.get("headers", ())).get(b"content-length", b"0")  # of one that is made as a whole
                try:
                    state["held"].add(max(0, int(length) - state["held"].size))
                except Full as full:  # the framework would take it for an error of an answer that has begun
                    refused = True
                    await full.response(scope)(scope, receive, send)
                    return
            data = memoryview(message.get("body", b""))
            for start in range(PIECE, len(data), PIECE):
                await send({**message, "body": data[start - PIECE : start], "more_body": True})
            await send({**message, "body": data[(len(data) - 1) // PIECE * PIECE :]} if len(data) > PIECE else message)

        try:
            with ExitStack() as until_sent:
                state["until_sent"] = until_sent
                state["held"] = until_sent.enter_context(self._account.holding(caller))
                body = _Body(most, state["held"], receive, headers)
                until_sent.callback(body.end)
                await self._app(scope, body.receive, answer)
        except Full as full:
            if not began:  # uvicorn closes a connection whose answer has no end
                await full.response(scope)(scope, receive, answer)


class _Body:
    """The body of one request."""

    def __init__(self, most: int, held: Item, receive: Receive, headers: Mapping[bytes, bytes]) -> None:
        self._most = most
        self._held = held
        self._receive = receive
        announced = headers.get(b"content-length", b"0")
        self._announced = int(announced) if announced.isdigit() else 0
        self._unread = self._announced > 0 or b"transfer-encoding" in headers
        self._coding = headers.get(b"content-encoding", b"").strip().lower()
        self._size = 0  # bytes that were read
        self._since: float | None = None  # time at which the application asked for it
        self._waiting: asyncio.Task[Any] | None = None  # for the next piece
        self._timer: asyncio.TimerHandle | None = None
        self._late = False

    async def receive(self) -> Message:
        """The next message for the application; raises HTTPFailure."""
        if self._announced > self._most:
            raise self._too_large()
        if self._unread and self._coding not in (b"", b"identity"):
            text = f"the body is compressed ({self._coding.decode('latin-1')}); send it as it is"
            raise HTTPFailure(415, text, "compressed_body", headers={"Accept-Encoding": "identity"})
        message = await (self._in_time() if self._unread else self._receive())
        self._unread = self._unread and bool(message.get("more_body", False))
        if not self._unread:
            self.end()
        self._size += len(message.get("body", b""))
        if self._size > self._most:
            raise self._too_large()
        try:
            self._held.add(len(message.get("body", b"")))
        except Full:
            self._held.close()  # what it has is of no use any more
            raise
        return message

    async def _in_time(self) -> Message:
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
            self._end_if_slow()
        self._waiting = task = asyncio.current_task()
        try:
            return await self._receive()
        except asyncio.CancelledError:
            if not self._late:
                raise
            getattr(task, "uncancel", int)()  # Python 3.10 counts no cancellations
            message = f"the body comes too slowly: {self._size} bytes in {seconds_for(self._size):.0f} s"
            raise HTTPFailure(408, message, "too_slow", headers={"Connection": "close"}) from None
        finally:
            self._waiting = None

    def _end_if_slow(self) -> None:
        """End the wait for a body that comes too slowly. There is one timer for all of it; one a piece costs time."""
        assert self._since is not None
        loop = asyncio.get_running_loop()
        left = self._since + seconds_for(self._size) - loop.time()
        if left > 0 or self._waiting is None:
            self._timer = loop.call_later(left if left > 0 else 1.0, self._end_if_slow)
        else:
            self._late = True
            self._waiting.cancel()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

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

    several: frozenset[str] = frozenset()
    """The fields of a form that may come several times."""

    async def json(self) -> Any:
        """The value of the body; see `parse_json`.

        Raises:
            HTTPFailure: 415, its header names another encoding than UTF-8; or as `parse_json`.
        """
        value = await parse_json(await self.body(), "body")
        self._kind("body")
        return value

    async def form(self, **limits: Any) -> FormData:  # type: ignore[override] # not used as a context manager
        """The fields of the body; each comes once, but for those in `several`.

        Raises:
            HTTPFailure: 400, 413 or 415, it is no form in UTF-8, too large, or has a field twice.
        """
        kind = self._kind("form")
        if self._form is None:
            if kind == b"application/x-www-form-urlencoded":
                self._form = _fields(await self.body())
            elif kind == b"multipart/form-data":
                self._form = await self._parts()
            else:
                raise HTTPFailure(400, "the body must be a form, sent as multipart/form-data", "invalid_argument")
        form = await super().form()
        names = [name for name, _ in form.multi_items() if name not in self.several]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            await form.close()
            message = f"{twice}: the form has this field twice; give it once"
            raise HTTPFailure(400, message, "duplicate_field", param=twice)
        return form

    def _kind(self, what: str) -> bytes:
        kind, options = parse_options_header(self.headers.get("content-type"))
        charset = options.get(b"charset", b"")
        if not _is_utf8(charset):
            message = f"the {what} is in {charset[:40].decode('latin-1')!r}; encode it as UTF-8"
            raise HTTPFailure(415, message, "invalid_encoding")
        return kind

    async def _parts(self) -> FormData:
        """The fields of a form with files; without a file that a browser's user did not choose."""
        parts = _Parts(self.headers, self.stream(), max_files=MAX_FILES, max_fields=MAX_FORM_FIELDS)
        parts.several = self.several
        try:
            form = await parts.parse()
        except MultiPartException as error:
            raise HTTPFailure(400, f"the form cannot be read: {error.message}", "bad_request") from None
        if not parts.ended:  # the framework leaves out what it began
            await form.close()
            raise HTTPFailure(400, "the form is cut off: it lacks the boundary at its end", "bad_request")
        chosen = []
        for name, value in form.multi_items():
            if isinstance(value, UploadFile) and not value.filename and not value.size:
                await value.close()
            else:
                chosen.append((name, value))
        return FormData(chosen)


class _Parts(MultiPartParser):
    """A form with files, whose names and texts are UTF-8; the framework reads all others as Latin-1."""

    ended = False
    """Whether the whole form was there."""
    several: frozenset[str] = frozenset()
    _first_file: str | None = None

    def on_end(self) -> None:
        self.ended = True

    def on_headers_finished(self) -> None:
        part = self._current_part
        disposition = part.content_disposition or b""
        if b"filename=" not in disposition:  # some clients send a name that is not ASCII in this form alone
            part.content_disposition = disposition = disposition.replace(b"filename*=", b"filename=")
        _, options = parse_options_header(disposition)
        if b"name" not in options:
            raise HTTPFailure(400, 'a part of the form has no name; send form-data; name="FIELD"', "invalid_argument")
        name = decoded(options[b"name"], "the name of a field")
        if b"filename" in options:
            if self._first_file is not None and not {name, self._first_file} <= self.several:
                message = (
                    f"{name}: the form has two files, {self._first_file} and {name}; send a text without a file name "
                    "(curl: -F 'FIELD=<FILE')"
                )
                raise HTTPFailure(400, message, "invalid_argument", param=name)
            self._first_file = name
        headers = dict(part.item_headers)
        transfer = headers.get(b"content-transfer-encoding", b"binary")
        if transfer.strip().lower() not in (b"7bit", b"8bit", b"binary"):
            message = f"{name}: it is encoded as {transfer[:40].decode('latin-1')!r}; send it as it is"
            raise HTTPFailure(400, message, "invalid_encoding", param=name)
        super().on_headers_finished()
        part.field_name = name
        _, kind = parse_options_header(headers.get(b"content-type"))
        charset = kind.get(b"charset", b"")
        if part.file is None and not _is_utf8(charset):
            message = f"{part.field_name}: it is in {charset[:40].decode('latin-1')!r}; encode it as UTF-8"
            raise HTTPFailure(400, message, "invalid_encoding", param=part.field_name)

    def on_part_end(self) -> None:
        part = self._current_part
        if part.file is None:
            name = part.field_name
            self.items.append(
                (name, decoded(part.data, f"{name}: it", name, ", or give it a file name if it is a file"))
            )
        else:
            super().on_part_end()


def _is_utf8(charset: bytes) -> bool:
    return charset.lower() in (b"", b"utf-8", b"utf8", b"us-ascii")


def _fields(body: bytes) -> FormData:
    if len(body) > MAX_FORM_BYTES:
        message = f"the form has {len(body)} bytes; at most {MAX_FORM_BYTES} are allowed without multipart/form-data"
        raise HTTPFailure(413, message, "body_too_large")
    try:
        return FormData([*urlencoded(body, "the form", MAX_FORM_FIELDS)])
    except ValueError:
        message = f"the form has too many fields; at most {MAX_FORM_FIELDS} are allowed"
        raise HTTPFailure(400, message, "invalid_argument") from None
