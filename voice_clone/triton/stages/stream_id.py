"""The ids under which a talker sends its streams to code2wav.

A caller may know the public id of its stream, which `info` tells, and can call code2wav itself. The id between the two
models ends with a secret, so nobody can put chunks into a stream that a talker sends. By its form code2wav sees that a
stream comes from a talker, inside an ensemble: then an error has to wait for the stream's final chunk (`codec.worker`
says why). Who copies the form for a stream of his own gets his errors later, and harms nobody.
"""

from __future__ import annotations

import re
import secrets

_SECRET = re.compile(r"\.talker-[0-9a-f]{32}\Z")


def with_secret(stream_id: str) -> str:
    """The id of a stream between its talker and code2wav."""
    return f"{stream_id}.talker-{secrets.token_hex(16)}"


def of_talker(stream_id: str) -> bool:
    """Whether a talker made this id."""
    return _SECRET.search(stream_id) is not None


def public_id(stream_id: str) -> str:
    """The id without its secret."""
    return _SECRET.sub("", stream_id)
