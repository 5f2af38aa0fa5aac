"""What a client takes from the environment where its caller does not say it, in Python as in the command."""

from __future__ import annotations

import os

SERVER, TOKEN, PROXY = "VOICE_CLONE_SERVER", "VOICE_CLONE_TOKEN", "VOICE_CLONE_PROXY"
PORT = 8001  # of Triton's gRPC endpoint
DEFAULT = f"localhost:{PORT}"


def server(url: str | None) -> str:
    """The address of the server."""
    return (os.environ.get(SERVER) or DEFAULT) if url is None else url


def token(given: str | None) -> str | None:
    """The write token; an empty one is none."""
    return (os.environ.get(TOKEN) if given is None else given) or None


def proxy(given: str | None) -> str | None:
    """The proxy; an empty one is none."""
    return (os.environ.get(PROXY) if given is None else given) or None
