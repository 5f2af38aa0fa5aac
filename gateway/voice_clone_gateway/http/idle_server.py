"""A speech server that ends when it is idle: requests with work for it have it started again, and wait for it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import HTTPFailure

PERIOD = 0.02  # seconds between two looks whether it is ready
_WORKS = "keeps_server"  # in the state of a request that has work

log = logging.getLogger(__name__)


class NotReady(HTTPFailure):
    """The server was not ready in time."""

    def __init__(self, retry_after: int) -> None:
        message = "the speech server was idle and is being started; try again later"
        headers = {"Retry-After": str(retry_after)}
        super().__init__(503, message, "server_unavailable", "server_error", headers=headers)


class IdleServer:
    """Whether the speech server runs, and the requests that have work for it. For one event loop.

    Args:
        path: of the lock between this gateway and the program that ends the server; "": no program ends it.
        patience: longest seconds that a request waits.
        retry_after: seconds, for those that have waited so long, while no start was measured.

    Raises:
        OSError: the lock cannot be opened.
    """

    def __init__(self, path: str = "", patience: float = 60.0, retry_after: int = 1) -> None:
        self._patience = patience
        self._last_start = float(retry_after)
        self._works = 0
        self._shared = False
        self._start: asyncio.Task[None] | None = None
        self._lock = None
        if path:
            from voice_clone_program.server_lock import ServerLock  # Windows has no such locks

            self._lock = ServerLock(path)

    @property
    def idle(self) -> bool:
        """Whether it has been ended, and is not ready again."""
        if self._lock is None or self._shared:
            return False
        if self._lock.share():
            self._lock.free()
            return False
        return True

    async def run_for(self, connection: HTTPConnection) -> None:
        """Have the server run until this request is over. Raises: as `begin`."""
        setattr(connection.state, _WORKS, True)
        await self.begin(connection.state.end_turn)

    async def begin(self, waits: Callable[[], object] = lambda: None) -> None:
        """Have the server run until `end`, which must be called even if this raises.

        Args:
            waits: called if the server is not ready.

        Raises:
            NotReady.
        """
        self._works += 1
        if self._lock is None:
            return
        self._shared = self._shared or (self._start is None and self._lock.share())
        if not self._shared:
            waits()
            self._start = self._start or asyncio.create_task(self._started())
            await asyncio.wait((self._start,), timeout=self._patience)
        if not self._shared:
            raise NotReady(math.ceil(self._last_start))

    def end(self) -> None:
        self._works -= 1
        self._free()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have the server run during the block. Raises: as `begin`."""
        try:
            await self.begin()
            yield
        finally:
            self.end()

    async def _started(self) -> None:
        """Ask for the server until it is ready. All requests wait for this one task, which goes on if they leave."""
        assert self._lock is not None
        began = time.monotonic()
        failure: OSError | None = None
        while True:
            try:
                if self._lock.share():
                    break
                self._lock.ask()
            except OSError as error:  # such as a full disk, or no more locks: this may pass
                if failure is None:
                    log.error("the speech server, which is idle, cannot be asked for: %s", error)
                failure = error
            await asyncio.sleep(PERIOD)
        self._last_start = time.monotonic() - began
        log.info("the speech server, which was idle, is ready again after %.1f s", self._last_start)
        self._start, self._shared = None, True
        self._free()

    def _free(self) -> None:
        """Let the server end if it is idle."""
        if self._lock is not None and self._shared and not self._works:
            self._shared = False
            self._lock.worked()
            self._lock.free()


class WithServer:
    """Middleware that notes the end of each request for which the server was to run."""

    def __init__(self, app: ASGIApp, server: IdleServer) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            if scope.get("state", {}).pop(_WORKS, False):
                self._server.end()
