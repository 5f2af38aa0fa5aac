"""Where a caller puts its key. All the places are read here, and everywhere:

    header         `Authorization: Bearer KEY`, `Authorization: Token KEY`, or one of `HEADERS`
    query          `?api_key=KEY`, `?access_token=KEY`: see `out_of_query`
    subprotocols   of a WebSocket: `voice-clone` and `bearer.` + the key in base64url without padding, for browsers,
                   which cannot set headers; or `token` or `bearer`, and the key; or
                   `openai-insecure-api-key.` + the key

The first one counts. A client of ElevenLabs may also put it into its first message.
"""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import unquote_to_bytes

import h11
from starlette.requests import HTTPConnection
from starlette.types import Scope

HEADERS = ("xi-api-key", "x-api-key", "ocp-apim-subscription-key", "x-vapi-secret")
QUERY = (b"api_key", b"access_token")
SUBPROTOCOL = "voice-clone"
_SCHEMES = ("bearer", "token")
_KEY_PREFIX, _PLAIN_PREFIX = "bearer.", "openai-insecure-api-key."
_CHOSEN = (SUBPROTOCOL, "realtime")
_SECRET = re.compile(rb"[!-~]+")


def out_of_query(event: h11.Request) -> h11.Request:
    """A request whose key is no longer in its query, but in a header: the web server logs URLs."""
    path, question, query = event.target.partition(b"?")
    options = query.split(b"&")
    values = [unquote_to_bytes(value) for name, _, value in (each.partition(b"=") for each in options) if name in QUERY]
    if not question or not values:
        return event
    left = b"&".join(each for each in options if each.partition(b"=")[0] not in QUERY)
    headers = event.headers.raw_items()
    if _SECRET.fullmatch(values[0]) and all(name.lower() != b"x-api-key" for name, _ in headers):
        headers = [*headers, (b"x-api-key", values[0])]
    target = path + question + left if left else path
    return h11.Request(method=event.method, target=target, headers=headers, http_version=event.http_version)


def presented(connection: HTTPConnection) -> str | None:
    """The key of a request; None if it has none."""
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() in _SCHEMES and key.strip():
        return key.strip()
    for name in HEADERS:
        if key := connection.headers.get(name, "").strip():
            return key
    return _of_subprotocols(connection.scope.get("subprotocols", ()))


def _of_subprotocols(offered: list[str]) -> str | None:
    if len(offered) == 2 and offered[0].lower() in _SCHEMES:
        return offered[1]
    for name in offered:
        if name.startswith(_PLAIN_PREFIX):
            return name.removeprefix(_PLAIN_PREFIX)
    coded = next((name.removeprefix(_KEY_PREFIX) for name in offered if name.startswith(_KEY_PREFIX)), None)
    if coded is None:
        return None
    try:
        return base64.b64decode(coded + "=" * (-len(coded) % 4), b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def chosen_subprotocol(scope: Scope) -> str | None:
    """The subprotocol to answer a WebSocket with."""
    offered = scope["subprotocols"]
    for name in _CHOSEN:
        if name in offered:
            return name
    return offered[0] if len(offered) == 2 and offered[0].lower() in _SCHEMES else None


def with_key(connection: HTTPConnection, key: str) -> HTTPConnection:
    """The connection as if it had presented this key."""
    others = [each for each in connection.scope["headers"] if each[0] != b"authorization"]
    bearer = (b"authorization", b"Bearer " + key.encode("latin-1", "replace"))
    return HTTPConnection({**connection.scope, "headers": [*others, bearer]})
