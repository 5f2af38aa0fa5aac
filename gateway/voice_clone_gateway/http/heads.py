"""The heads of requests: those that two readers could read differently are refused, the others get one form.

A proxy, a check and the code behind it must see one and the same request. So a header that has one value is there once,
a body has one length, and a path has no encoded slash.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

import h11
from starlette.types import ASGIApp, Receive, Scope, Send

from . import presented_keys
from .encoding import decoded, urlencoded
from .errors import HTTPFailure

MAX_HEADERS, MAX_HEADER_BYTES = 100, 8000  # the library of WebSockets has 128 and 8192
_SINGLE = (
    *(b"authorization", b"content-encoding", b"content-type", b"host", b"origin"),
    *(name.encode() for name in presented_keys.HEADERS),
)
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_ENCODED = re.compile(rb"%(2f|5c|00)", re.IGNORECASE)
_ABSOLUTE = re.compile(rb"https?://([^/?#]+)([^#]*)", re.IGNORECASE)


class OneReading:
    """Middleware that refuses the heads that `check_head` refuses, and gives the others one form.

    A slash at the end of a path is ignored, and so is an option of the query without a value. HEAD is answered as GET
    is, without the body; a route finds `request.state.head` true and may spare itself the work.

    Args:
        websockets: the paths at which there are WebSockets alone.
    """

    def __init__(self, app: ASGIApp, websockets: Collection[re.Pattern[str]]) -> None:
        self._app = app
        self._websockets = websockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        path = path[:-1] if len(path) > 1 and path.endswith("/") else path
        if scope["type"] == "http":
            try:
                check_head(scope)
                if scope["method"] == "GET" and any(each.match(path) for each in self._websockets):
                    raise _no_upgrade()
            except HTTPFailure as refusal:
                await refusal.response(scope)(scope, receive, send)
                return
        options = [option for option in scope["query_string"].split(b"&") if option.partition(b"=")[2]]
        inner = {
            **scope,
            "path": path,
            "query_string": b"&".join(options),
        }
        scope["state"]["head"] = scope.get("method") == "HEAD"
        if scope["state"]["head"]:
            inner["method"] = "GET"  # the web server sees HEAD, and sends no body
        try:
            await self._app(inner, receive, send)
        finally:
            if "route" in inner:
                scope["route"] = inner["route"]


def check_head(scope: Mapping[str, Any]) -> None:
    """Check the head of a request, given as the scope of ASGI.

    Raises:
        HTTPFailure: 400, 414 or 431, it has two readings, a longer URL, or more or longer headers than clients send, or
            its URL is not UTF-8.
    """
    fields = scope["headers"]
    if len(fields) > MAX_HEADERS or any(len(name) + len(value) > MAX_HEADER_BYTES for name, value in fields):
        text = f"at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes are allowed"
        raise HTTPFailure(431, text, "headers_too_large", headers=_CLOSE)
    if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_HEADER_BYTES:
        raise HTTPFailure(414, f"at most {MAX_HEADER_BYTES} bytes of a URL are allowed", "url_too_long", headers=_CLOSE)
    names = Counter(name for name, _ in fields)
    twice = next((name for name in _SINGLE if names[name] > 1), None)
    if twice is not None:
        raise _refused(f"the header {twice.decode().title()} is there twice; send it once")
    if any(_CONTROL.search(value) for _, value in fields):
        raise _refused("a header has a control character")
    headers = dict(fields)
    chunked = b"transfer-encoding" in headers
    if chunked and (b"content-length" in headers or scope["http_version"] == "1.0"):
        raise _refused("the body has two lengths; send either Content-Length or, in HTTP/1.1, Transfer-Encoding")
    has_body = chunked or headers.get(b"content-length", b"0").strip(b"0") != b""
    if scope["method"] == "GET" and headers.get(b"upgrade", b"").lower() == b"websocket" and has_body:
        raise _refused("a request that opens a WebSocket has no body")
    if _ENCODED.search(scope["raw_path"]):
        raise _refused("the path has an encoded slash, backslash or zero; no name has one")
    decoded(unquote_to_bytes(scope["raw_path"]), "the path")
    urlencoded(scope["query_string"], "the query")


def in_origin_form(event: h11.Request) -> h11.Request:
    """A request whose target is a path. The host of a target like `http://host/path` replaces the header Host."""
    found = _ABSOLUTE.fullmatch(event.target)
    if found is None:
        return event
    path = found[2] if found[2].startswith(b"/") else b"/" + found[2]
    headers = [(name, value) for name, value in event.headers if name != b"host"]
    return h11.Request(
        method=event.method, target=path, headers=[*headers, (b"host", found[1])], http_version=event.http_version
    )


_CLOSE = {"Connection": "close"}


def _no_upgrade() -> HTTPFailure:
    return HTTPFailure(
        426,
        "this path is a WebSocket, and the request came without the header Upgrade; connect by ws:// or wss://, or, if "
        "you do, let the proxy on the way pass the headers Upgrade and Connection on by HTTP/1.1",
        "upgrade_required",
        headers={"Upgrade": "websocket"},
    )


def _refused(message: str) -> HTTPFailure:
    return HTTPFailure(400, message, "ambiguous_request", headers=_CLOSE)
