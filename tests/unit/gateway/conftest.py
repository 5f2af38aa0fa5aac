"""The gateway in a thread, in front of the double of Triton."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
import uvicorn
from voice_clone_gateway import Settings, create_app
from voice_clone_gateway.app import server_options

from tests.unit.client.conftest import triton  # noqa: F401  a fixture

Serve = Callable[..., httpx2.Client]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a gateway with these settings; returns a client of it."""
    with contextlib.ExitStack() as stack:

        def start(url: str, **settings: Any) -> httpx2.Client:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            chosen = Settings(triton=url, **settings)
            options = {**server_options(chosen), "lifespan": "on", "timeout_graceful_shutdown": 5}
            server = uvicorn.Server(uvicorn.Config(create_app(chosen), **options))
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()
            stack.callback(thread.join)
            stack.callback(setattr, server, "should_exit", True)
            base = f"http://127.0.0.1:{listener.getsockname()[1]}"
            return stack.enter_context(httpx2.Client(base_url=base, timeout=30, trust_env=False))

        yield start
