"""Environment variables that count where a caller names no server, token or proxy, in Python and in the command."""

from __future__ import annotations

import os

SERVER, TOKEN, PROXY = "VOICE_CLONE_SERVER", "VOICE_CLONE_TOKEN", "VOICE_CLONE_PROXY"
PORT = 8001  # of Triton's gRPC endpoint
DEFAULT = f"localhost:{PORT}"


def server(url: str | None) -> str:
    """Return the address of the server."""
    return (os.environ.get(SERVER) or DEFAULT) if url is None else url


def token(given: str | None) -> str | None:
    """Return the write token. An empty one is none."""
    return (os.environ.get(TOKEN) if given is None else given) or None


def proxy(given: str | None) -> str | None:
    """Return the proxy. An empty one is none."""
    return (os.environ.get(PROXY) if given is None else given) or None
