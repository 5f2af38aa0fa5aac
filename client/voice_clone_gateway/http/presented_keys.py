"""Where the clients of WebSockets put their keys: a request with its key as a bearer header.

    voice-clone   subprotocols `voice-clone` and `bearer.` + the key in base64url without padding
    Deepgram      `Authorization: Token KEY`, or subprotocols `token` and the key
    ElevenLabs    `xi-api-key: KEY`, or in the first message

All of them may send `Authorization: Bearer KEY`, too.
"""

from __future__ import annotations

import base64
import binascii

from starlette.requests import HTTPConnection

SUBPROTOCOL = "voice-clone"
_KEY_PREFIX = "bearer."


def bearing(connection: HTTPConnection, key: bytes) -> HTTPConnection:
    """The connection with this key."""
    others = [(name, value) for name, value in connection.scope["headers"] if name != b"authorization"]
    return HTTPConnection({**connection.scope, "headers": [*others, (b"authorization", b"Bearer " + key)]})


def of_own_protocol(connection: HTTPConnection) -> tuple[HTTPConnection, str | None]:
    """The connection with its key, and the subprotocol to answer with."""
    offered = connection.scope["subprotocols"]
    answer = SUBPROTOCOL if SUBPROTOCOL in offered else None
    coded = [name for name in offered if name.startswith(_KEY_PREFIX)]
    if not coded or "authorization" in connection.headers:
        return connection, answer
    text = coded[0].removeprefix(_KEY_PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        return connection, answer
    return bearing(connection, key), answer


def of_deepgram(connection: HTTPConnection) -> tuple[HTTPConnection, str | None]:
    """The connection with its key, and the subprotocol to answer with."""
    kind, _, key = connection.headers.get("authorization", "").partition(" ")
    if kind.lower() == "token":
        return bearing(connection, key.encode("latin-1")), None
    offered = connection.scope["subprotocols"]
    if not kind and len(offered) == 2 and offered[0].lower() in ("token", "bearer"):
        return bearing(connection, offered[1].encode("latin-1")), offered[0]
    return connection, None


def of_elevenlabs(connection: HTTPConnection) -> HTTPConnection | None:
    """The connection with its key; None if it has none, so that its first message must."""
    if "authorization" in connection.headers:
        return connection
    key = connection.headers.get("xi-api-key")
    return None if key is None else bearing(connection, key.encode("latin-1"))
