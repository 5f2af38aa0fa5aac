"""Traces of speeches by OpenTelemetry, sent over OTLP: from the request through the server's stages to the last byte.

    POST /v1/audio/speech                    the request; its parent is that of the header `traceparent`
      first audio                            until the server's first chunk is here; `cache` says where the voice was
        prompt, encoder, queue, ...          the server's stages, see `voice_clone_client.spans`
      frames                                 the rest of the speech, as the talker and code2wav say at its end

The stages follow each other, from the moment at which the server was asked. The rest of `first audio` is the transport
between gateway and server. A speech with `stream` false is held back until it is whole, and `first audio` lasts until
then. A trace has no text, no name of a voice, and no key.

Triton joins the trace if it is started with `--trace-config mode=opentelemetry`: each call carries `traceparent`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from voice_clone_client.spans import first_audio_spans

log = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0
MISSING = "--otlp-endpoint needs OpenTelemetry: pip install ./client './gateway[traces]'"
REPORTED = (
    *("mode", "cache", "frames", "finish_reason", "reference_frames", "text_tokens"),
    *("talker_ms", "code2wav_ms"),
)
"""What of `info` the spans have as attributes."""


class Traces:
    """The traces of a gateway.

    Args:
        endpoint: the URL that takes traces over OTLP and HTTP, such as http://localhost:4318/v1/traces; "": there are
            no traces, and OpenTelemetry is not imported.

    Raises:
        ValueError: it is no URL, or OpenTelemetry is not installed.
    """

    def __init__(self, endpoint: str) -> None:
        self._tracer: Any = None
        if not endpoint:
            return
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("otlp_endpoint is no URL; give one such as http://localhost:4318/v1/traces")
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise ValueError(MISSING) from None
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "voice-clone-gateway"}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("voice_clone_gateway")

    @contextmanager
    def speech(self, name: str, headers: Mapping[str, str], began: float, request_id: str) -> Iterator[SpeechTrace]:
        """The trace of a speech that is answered in the `with` block."""
        if self._tracer is None:
            yield SpeechTrace()
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent, clocks = TraceContextTextMapPropagator().extract(dict(headers)), _between_clocks()
        with self._tracer.start_as_current_span(
            name,
            context=parent,
            kind=SpanKind.SERVER,
            start_time=_epoch(began, clocks),
            attributes={"voice_clone.request_id": request_id},
            record_exception=False,  # a message may hold a voice's name
            set_status_on_exception=False,
        ) as span:
            trace = SpeechTrace(self._tracer, span, clocks)
            try:
                yield trace
            except Exception as error:
                trace.fail(getattr(error, "code", type(error).__name__))
                raise
            finally:
                if trace.failed is not None:
                    span.set_status(Status(StatusCode.ERROR, trace.failed))

    def close(self) -> None:
        """Send what waits, for at most `CLOSE_SECONDS`: one whose collector is gone would try again for long."""
        if self._tracer is not None:
            sending = threading.Thread(target=self._provider.shutdown, daemon=True)
            sending.start()
            sending.join(CLOSE_SECONDS)
            if sending.is_alive():
                log.warning(
                    "the latest traces were not sent: the collector of --otlp-endpoint did not take them in time"
                )


class SpeechTrace:
    """The spans of one speech; without arguments there are none."""

    def __init__(self, tracer: Any = None, span: Any = None, clocks: int = 0) -> None:
        self._tracer = tracer
        self._span = span
        self._clocks = clocks
        self._asked = self._first = 0.0
        self.headers = self._traceparent()
        """`traceparent` of what belongs to the trace: calls of the server, and the answer."""
        self.failed: str | None = None
        """The slug of the error with which the speech ended."""

    def _traceparent(self) -> dict[str, str]:
        sent: dict[str, str] = {}
        if self._span is not None:
            from opentelemetry.trace import set_span_in_context
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            TraceContextTextMapPropagator().inject(sent, set_span_in_context(self._span))
        return sent

    def asked(self) -> None:
        """The server is asked for the speech."""
        self._asked = time.monotonic()

    def first_audio(self, info: Mapping[str, Any] | None) -> None:
        """The server's first chunk is here, with what it says of its stages."""
        if self._span is None:
            return
        self._first, info = time.monotonic(), info or {}
        outer = self._made("first audio", self._asked, self._first, info)
        for span in first_audio_spans(info):
            self._made(span.name, self._asked + span.start / 1e3, self._asked + span.end / 1e3, {}, outer)

    def end(self, info: Mapping[str, Any] | None, seconds: float) -> None:
        """All of its audio is here, so many seconds."""
        if self._span is None or not self._first:
            return
        info = info or {}
        self._made("frames", self._first, time.monotonic(), info)
        self._span.set_attributes({**_reported(info), "voice_clone.seconds": round(seconds, 3)})

    def fail(self, slug: str) -> None:
        """It ends with an error."""
        self.failed = self.failed or str(slug)

    def _made(self, name: str, start: float, end: float, info: Mapping[str, Any], parent: Any = None) -> Any:
        """A span that is over."""
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(self._span if parent is None else parent)
        span = self._tracer.start_span(
            name, context, start_time=_epoch(start, self._clocks), attributes=_reported(info)
        )
        span.end(_epoch(end, self._clocks))
        return span


def _reported(info: Mapping[str, Any]) -> dict[str, Any]:
    return {f"voice_clone.{name}": info[name] for name in REPORTED if isinstance(info.get(name), (str, int, float))}


def _between_clocks() -> int:
    """Nanoseconds between 1970 and the beginning of the monotonic clock. All spans of a trace take the same."""
    return time.time_ns() - time.monotonic_ns()


def _epoch(moment: float, clocks: int) -> int:
    """A moment of the monotonic clock in nanoseconds since 1970."""
    return clocks + round(1e9 * moment)
