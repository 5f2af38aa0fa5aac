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
def serving(end: Callable[[threading.Thread], None] = threading.Thread.join) -> Iterator[Serve]:
    """A function that serves a gateway with an address of Triton and settings, and returns a client of it.

    Args:
        end: called with each gateway's thread when it was asked to end, which takes it 0.1 to 0.2 s.
    """
    with contextlib.ExitStack() as stack:

        def start(url: str, **settings: Any) -> httpx2.Client:
            # asyncio turns Nagle's algorithm off only where the socket names TCP. With it, each answer after the first on
            # a connection takes 40 ms more.
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # the server closes it
            listener.bind(("127.0.0.1", 0))
            chosen = Settings(triton=url, **settings)
            options = {**server_options(chosen), "lifespan": "on", "timeout_graceful_shutdown": 5}
            server = uvicorn.Server(uvicorn.Config(create_app(chosen), **options))
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()
            stack.callback(end, thread)
            stack.callback(setattr, server, "should_exit", True)
            base = f"http://127.0.0.1:{listener.getsockname()[1]}"
            client = httpx2.Client(base_url=base, timeout=30, trust_env=False, verify=False)  # certificates load slowly
            return stack.enter_context(client)

        yield start
