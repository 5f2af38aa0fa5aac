"""Tokens: a key gives one to a browser, which may then speak for a while without having the key.

A token has the time of its end, and a code of it that is made with the key's digest. So nothing is stored, each gateway
that has the key takes its tokens, and they end with the key. A token has the key's limits, and the scope `speak` alone.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time

from starlette.requests import HTTPConnection

from ..services import services_of
from .errors import HTTPFailure
from .presented_keys import presented

MOST_SECONDS = 3600
NO_KEY = "no-key-needed"
"""The token of a gateway without keys, which takes any."""
_LEAST_KEY = 24  # characters; who has a token could find a key that is easy to guess
_FORM = re.compile(r"vct_([0-9a-f]{16})_([0-9]{10})_([0-9a-f]{64})")


def grant(connection: HTTPConnection, seconds: float) -> str:
    """A token of the key of a request that was admitted.

    Raises:
        HTTPFailure: the request has a token instead, or a key that is too short.
    """
    if not services_of(connection).keys:
        return NO_KEY
    key = presented(connection) or ""
    if _FORM.fullmatch(key):
        raise HTTPFailure(403, "a token cannot make another one; use a key", "missing_scope", "permission_error")
    if len(key) < _LEAST_KEY:
        text = f"only keys of at least {_LEAST_KEY} characters have tokens, which could give away a short one"
        raise HTTPFailure(400, text, "unsupported")
    digest, end = digest_of(key), int(time.time() + seconds)
    return f"vct_{name_of(digest)}_{end:010d}_{_code(digest, end)}"


def token_of(text: str) -> tuple[str, int, str] | None:
    """The name of a token's key, its end in seconds since 1970, and its code; None if a text is no token."""
    found = _FORM.fullmatch(text)
    return None if found is None else (found[1], int(found[2]), found[3])


def is_valid(digest: bytes, end: int, code: str) -> bool:
    """Whether a token is one of the key with this digest, and has not ended."""
    return hmac.compare_digest(_code(digest, end), code) and time.time() < end


def digest_of(key: str) -> bytes:
    """What the gateway knows of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def name_of(digest: bytes) -> str:
    """The name of a key in its tokens."""
    return hashlib.sha256(b"name of " + digest).hexdigest()[:16]


def _code(digest: bytes, end: int) -> str:
    return hmac.new(digest, b"speak until %d" % end, hashlib.sha256).hexdigest()
