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

from tests.support.doubles.triton_double import Server

Serve = Callable[..., httpx2.Client]
Shared = tuple[Server, httpx2.Client]
"""A double of Triton, and a client of a gateway in front of it that other tests of the file use, too."""


def client_of(url: httpx2.URL | str) -> httpx2.Client:
    """A client of a gateway of this machine. It loads no certificates, which takes longer than most tests."""
    return httpx2.Client(base_url=url, timeout=30, trust_env=False, verify=False)


@contextlib.contextmanager
def serving(end: Callable[[threading.Thread], None] = threading.Thread.join) -> Iterator[Serve]:
    """A function that serves a gateway with an address of Triton and settings, and returns a client of it.

    Args:
        end: called with each gateway's thread when it was asked to end, which takes it 0.1 to 0.2 s.
    """
    with contextlib.ExitStack() as stack:

        def start(url: str, **settings: Any) -> httpx2.Client:
            # asyncio turns Nagle's algorithm off only where the socket names TCP. With it, each answer after the first
            # on a connection takes 40 ms more.
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # the server closes it
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            chosen = Settings(triton=url, **settings)
            options = {**server_options(chosen), "lifespan": "on", "timeout_graceful_shutdown": 5}
            server = uvicorn.Server(uvicorn.Config(create_app(chosen), **options))
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()
            stack.callback(end, thread)
            stack.callback(setattr, server, "should_exit", True)
            client: httpx2.Client = stack.enter_context(client_of(f"http://127.0.0.1:{listener.getsockname()[1]}"))
            return client

        yield start
