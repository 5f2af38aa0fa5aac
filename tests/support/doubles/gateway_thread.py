"""The gateway in a thread of this process."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import uvicorn
from voice_clone_gateway import Settings, create_app
from voice_clone_gateway.app import server_options

Serve = Callable[..., httpx2.Client]


@contextlib.contextmanager
def serving() -> Iterator[Serve]:
    """A function that serves a gateway with an address of Triton and settings, and returns a client of it."""
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
            client: httpx2.Client = stack.enter_context(httpx2.Client(base_url=base, timeout=30, trust_env=False))
            return client

        yield start
