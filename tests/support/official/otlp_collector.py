"""Takes traces over OTLP and HTTP, as a collector of OpenTelemetry does."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """A collector; a context manager.

    Attributes:
        spans: as they came.
        services: the name of the service that sent a span, by the span's id.
        url: for traces.
    """

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: dict[bytes, str] = {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.take(of_json(body) if "json" in self.headers["content-type"] else body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def by_name(self) -> dict[str, Any]:
        """The spans by their names; of several with one name the latest."""
        return {span.name: span for span in list(self.spans)}

    def close(self) -> None:
        """Take no more."""
        self._server.shutdown()
        self._server.server_close()

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.services |= {span.span_id: named.get("service.name", "") for span in scope.spans}
                self.spans += scope.spans


def of_json(body: bytes) -> bytes:
    """OTLP's JSON in its binary form. Its ids are hexadecimal, against the rules of protobuf's JSON."""

    def change(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: change(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [change(each) for each in value]
        if name in ("traceId", "spanId", "parentSpanId"):
            return base64.b64encode(bytes.fromhex(value)).decode()
        return value

    found = ParseDict(change(json.loads(body)), ExportTraceServiceRequest(), ignore_unknown_fields=True)
    return bytes(found.SerializeToString())
