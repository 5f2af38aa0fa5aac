"""Speech goes first, and no caller takes the time of the gateway from another one.

The gateway has one thread, so whatever a request does in it delays all others. The requests of one caller begin one
after the other: each has a turn until it is answered, or waits for its body or its work, and another one for each piece
of its body.

Requests for speech have turns of their own. The others wait for the first audio of the speeches that have begun, but
not for long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from anyio import move_on_after
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from voice_clone_client.callers import caller_here

from ..places import Places

SPEECH = "/v1/audio/speech"
PATIENCE = 0.05  # seconds that a request waits for first audio at most
LONGEST = 0.2  # seconds that a turn lasts at most
RECENT = 10.0  # seconds for which a caller is expected to speak again
AT_ONCE = 2  # voices of one caller that the server makes while others speak
CALLERS = 63  # of which a request has its turn beside that of the first
BODIES = ("POST", "PUT", "PATCH")


class Listeners:
    """The speeches whose listeners wait for first audio."""

    def __init__(self) -> None:
        self._waiting: set[object] = set()
        self._callers: dict[str, float] = {}  # when each began to wait last
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def waiting(self, speech: object) -> Iterator[None]:
        """The listener of a speech waits during this block, until `heard` is called."""
        now = time.monotonic()
        self._callers = {caller: since for caller, since in self._callers.items() if now - since < RECENT}
        self._callers[caller_here()] = now
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

    def others(self) -> bool:
        """Whether callers other than this task's speak."""
        now, here = time.monotonic(), caller_here()
        return any(caller != here and now - since < RECENT for caller, since in self._callers.items())

    async def served(self, seconds: float) -> None:
        """Wait until no listener waits, or for so long."""
        if self._waiting:
            with move_on_after(seconds):
                await self._none.wait()


class AfterSpeech:
    """Turns of the server's longer work where another caller speaks: a few at a time, each of which waits for first
    audio as requests do.
    """

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        self._places = Places(AT_ONCE, more=CALLERS)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A turn of this task's caller during the block."""
        if not self._listeners.others():
            yield
            return
        async with self._places.place():
            await self._listeners.served(PATIENCE)
            yield


class _Turn:
    """The turn of a request."""

    def __init__(self, line: Places, caller: str) -> None:
        self._line, self._caller = line, caller
        self._leave: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Wait for it."""
        self._leave = await self._line.enter(self._caller)
        self._timer = asyncio.get_running_loop().call_later(PATIENCE + LONGEST, self.end)

    def end(self) -> None:
        """Let the next request begin. Does nothing if it is over."""
        if self._timer is not None:
            self._timer.cancel()
        self._leave()


class SpeechFirst:
    """The middleware."""

    def __init__(self, app: ASGIApp, listeners: Listeners, caller: Callable[[HTTPConnection], str]) -> None:
        self._app = app
        self._listeners = listeners
        self._caller = caller
        self._speech, self._others = Places(1, more=CALLERS), Places(1, more=CALLERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        websocket = scope["type"] == "websocket"  # it begins when it is accepted
        has_body = not websocket and scope["method"] in BODIES
        speech = websocket or (has_body and scope["path"].startswith(SPEECH))
        turn = _Turn(self._speech if speech else self._others, self._caller(HTTPConnection(scope)))
        follows = has_body
        scope.setdefault("state", {})["end_turn"] = turn.end  # for one that waits for something else

        async def received() -> Message:
            nonlocal follows
            turn.end()
            message = await receive()
            if follows:
                follows = message.get("more_body", False)
                await turn.begin()
            return message

        async def sent(message: Message) -> None:
            turn.end()  # the rest may take as long as the reader wishes
            await send(message)

        await turn.begin()
        try:
            if not speech:
                await self._listeners.served(PATIENCE)
            await self._app(scope, receive if websocket else received, sent)
        finally:
            turn.end()
