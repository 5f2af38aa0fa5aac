"""Speech goes first: other requests wait while a listener waits for first audio.

The gateway has one thread, so whatever another request does in it delays speech. Requests other than speech begin one
after the other, their callers in turn, and each waits for the first audio of the speeches that have begun, but not for
long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anyio import move_on_after
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..places import Places

SPEECH = "/v1/audio/speech"
PATIENCE = 0.05  # seconds that a request waits for first audio at most
LONGEST = 0.2  # seconds that the next request waits for the answer to this one
BODIES = ("POST", "PUT", "PATCH")  # these may wait for their bodies, which delays no speech


class Listeners:
    """The speeches whose listeners wait for first audio."""

    def __init__(self) -> None:
        self._waiting: set[object] = set()
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def waiting(self, speech: object) -> Iterator[None]:
        """The listener of a speech waits during this block, until `heard` is called."""
        self._waiting.add(speech)
        self._none.clear()
        try:
            yield
        finally:
            self.heard(speech)

    def heard(self, speech: object) -> None:
        """There is first audio of a speech, or none will come."""
        self._waiting.discard(speech)
        if not self._waiting:
            self._none.set()

    async def served(self, seconds: float) -> None:
        """Wait until no listener waits, or for so long."""
        if self._waiting:
            with move_on_after(seconds):
                await self._none.wait()


class SpeechFirst:
    """The middleware.

    Args:
        app: handles the requests.
        listeners: whose first audio goes before.
        caller: whose a request is.
    """

    def __init__(self, app: ASGIApp, listeners: Listeners, caller: Callable[[HTTPConnection], str]) -> None:
        self._app = app
        self._listeners = listeners
        self._caller = caller
        self._one = Places(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request in its turn."""
        if scope["type"] != "http" or scope["method"] in BODIES or scope["path"].startswith(SPEECH):
            await self._app(scope, receive, send)
            return
        release = await self._one.enter(self._caller(HTTPConnection(scope)))

        async def sent(message: Message) -> None:
            release()  # the rest may take as long as the reader wishes
            await send(message)

        timer = asyncio.get_running_loop().call_later(PATIENCE + LONGEST, release)
        try:
            await self._listeners.served(PATIENCE)
            await self._app(scope, receive, sent)
        finally:
            timer.cancel()
            release()
