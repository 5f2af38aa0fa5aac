"""Metrics and log of each request: id, route, status, time to the first audio. Never a text, never a key."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..services import services_of
from .errors import CLIENT_CLOSED, error_code, failure
from .keys import Key

log = logging.getLogger(__name__)
router = APIRouter()

_PREFIX = "voice_clone_gateway_"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_BUCKETS = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """The metrics of one gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            f"{_PREFIX}requests", "Answers, by route and status", ("route", "method", "status"), registry=self.registry
        )
        self.first_audio = Histogram(
            f"{_PREFIX}first_audio_seconds",
            "From a streamed request to its first bytes of audio",
            registry=self.registry,
            buckets=_BUCKETS,
        )
        self.live = Gauge(f"{_PREFIX}live_speeches", "Running speeches", registry=self.registry)
        self.audio_seconds = Counter(f"{_PREFIX}audio_seconds", "Audio sent", registry=self.registry)
        self.aborted = Counter(
            f"{_PREFIX}aborted_speeches",
            "Speeches that ended early, after their first audio, by reason",
            ("reason",),
            registry=self.registry,
        )
        self.refused = Counter(
            f"{_PREFIX}refused_speeches",
            "Speeches that ended before their first audio, by reason",
            ("reason",),
            registry=self.registry,
        )
        self.aborted.labels("incomplete")  # 0 from the start: a rate needs it
        self.retried = Counter(
            f"{_PREFIX}retried_speeches",
            "Further attempts at speeches whose end the model missed",
            ("family",),
            registry=self.registry,
        )
        self._marks = Counter(
            f"{_PREFIX}marks",
            "Speeches with audio, by the rule mark of their key and by what the server says: marked, failed or none",
            ("rule", "result"),
            registry=self.registry,
        )

    def count_failed(self, error: BaseException, began: bool) -> None:
        """Count a speech that ended with an error; `began`: there was audio."""
        (self.aborted if began else self.refused).labels(error_code(error)).inc()

    def count_mark(self, key: Key, info: Mapping[str, Any] | None) -> None:
        """Count a speech that has ended; `info` is the server's on it, None if there was no audio."""
        if info is not None:
            self._marks.labels(key.mark or "none", info.get("mark", "none")).inc()


class Observed:
    """Middleware that gives each request an id, counts its answer, and answers errors without a handler."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = scope.setdefault("state", {})["request_id"] = uuid.uuid4().hex
        scope["state"]["began"] = time.monotonic()
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        status = CLIENT_CLOSED

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, named)
        except Exception as error:
            if status != CLIENT_CLOSED:
                raise
            await failure(error, request_id).response(scope)(scope, receive, named)
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            method = scope["method"] if scope["method"] in _METHODS else "other"  # a caller may invent any number
            self._metrics.requests.labels(route, method, str(status)).inc()


@router.get("/metrics", tags=["operation"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """The gateway's metrics for Prometheus."""
    return Response(generate_latest(services_of(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)
