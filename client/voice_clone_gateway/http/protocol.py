"""uvicorn's HTTP protocol with timeouts for incomplete requests."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedProtocol(H11Protocol):
    """A connection that is closed if a request stays incomplete; uvicorn would keep it open.

    Args:
        head_seconds: for the head of a request, from the connection or from the first byte of the head.
        body_seconds: for its body.
        **of_uvicorn: the arguments of uvicorn's protocols.
    """

    def __init__(self, head_seconds: float, body_seconds: float, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._seconds = {h11.IDLE: head_seconds, h11.SEND_BODY: body_seconds}
        self._phase: Any = None  # of the request, in h11's terms; None after the change to another protocol
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_limit()
        super().connection_lost(exc)

    def _watch(self) -> None:
        phase = self.conn.their_state if self.transport.get_protocol() is self else None
        if phase == self._phase:
            return
        self._end_limit()
        self._phase = phase
        if phase in self._seconds:
            self._limit = self.loop.call_later(self._seconds[phase], self.transport.close)

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _should_upgrade(self) -> bool:
        # Only a GET opens a WebSocket. uvicorn would upgrade any other request too, and never answer it.
        return self.scope["method"] == "GET" and super()._should_upgrade()
