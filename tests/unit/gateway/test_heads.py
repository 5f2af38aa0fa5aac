"""The heads of requests: one reading for all who read them, byte by byte over a socket."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from safetensors.numpy import save

from tests.support.doubles.gateway_thread import Serve, Shared
from tests.support.doubles.triton_double import Server

SPEECH = b'{"input": "x", "voice": "ada"}'
RECORD = {"name": "ada", "speakers": [], "created_at": 1.5, "mime_type": "audio/wav", "file_size": 44}
UPGRADE = (
    "GET /v1/audio/speech/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
)


def sent(http: httpx2.Client, data: bytes) -> tuple[int, bytes]:
    """Status and rest of the answer to these bytes, after which the sender is silent; 0: there is none."""
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=20) as connection:
        connection.sendall(data)
        answer = b""
        while True:
            found = re.search(rb"content-length: (\d+)\r\n(?:.*\r\n)*\r\n", answer.lower())
            if (found and len(answer) >= found.end() + int(found[1])) or b"\r\n\r\n0\r\n\r\n" in answer:
                break
            try:
                piece = connection.recv(65536)
            except ConnectionError:
                break
            if not piece or b" 101 " in piece:
                answer += piece
                break
            answer += piece
    return int(answer[9:12] or 0), answer


def post(*headers: str, body: bytes = SPEECH, path: str = "/v1/audio/speech", version: str = "1.1") -> bytes:
    head = [f"POST {path} HTTP/{version}", "Host: localhost", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "", ""]).encode() + body


JSON = "Content-Type: application/json"
CHUNKED = f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n".encode()


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (post(JSON, JSON), 400, b"Content-Type is there twice"),
        (post("Content-Type: text/plain", JSON), 400, b"Content-Type is there twice"),
        (post(JSON, "Authorization: Bearer a", "Authorization: Bearer b"), 400, b"Authorization is there twice"),
        (post(JSON, "Origin: http://localhost", "Origin: https://evil.example"), 400, b"Origin is there twice"),
        (post(JSON, "Content-Encoding: identity", "Content-Encoding: gzip"), 400, b"Content-Encoding is there twice"),
        (post(JSON, "X: \x01"), 400, b"control character"),
        (post(JSON, "X: " + "y" * 9000), 431, b"of 8000 bytes"),
        (post(JSON, *["X: y"] * 101), 431, b"at most 100 headers"),
        (CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n", 400, b"two lengths"),
        (CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n0\r\n\r\n", 400, b"two lengths"),
        (UPGRADE.encode() + b"Content-Length: 5\r\n\r\nhello", 400, b"has no body"),
        (UPGRADE.encode() + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, b"has no body"),
        (UPGRADE.encode() + b"X: " + b"y" * 9000 + b"\r\n\r\n", 431, b"of 8000 bytes"),
        (UPGRADE.encode() + b"X: y\r\n" * 120 + b"\r\n", 431, b"at most 100 headers"),
        (UPGRADE.encode() + b"X: \x01\r\n\r\n", 400, b"control character"),
        (post(path="/v1/audio/voices/ada%2Fcache", body=b""), 400, b"encoded slash"),
        (post(path="/v1/audio/voices/ada%5ccache", body=b""), 400, b"encoded slash"),
        (post(path="/v1/audio/voices/%ff/cache", body=b""), 400, b"path is not UTF-8"),
        (CHUNKED + b"\r\n" + b"1\r\n \r\n" * 10_000 + b"0\r\n\r\n", 400, b"Invalid HTTP request"),
        (CHUNKED + b"\r\n" + b"1f\r\n" + SPEECH + b" \r\n" + b"0\r\nA: b\r\n\r\n", 200, b""),
        (CHUNKED + b"\r\n2\r\n{}\r\n0\r\n" + b"A: b\r\n" * 20_000 + b"\r\n", 400, b""),
        (UPGRADE.encode() + b"\r\n", 101, b""),
        (UPGRADE.replace("/stream", "/stream?" + "a=b&" * 2500).encode() + b"\r\n", 414, b"at most 8000"),
        (post(path="/v1/audio/speech?" + "a=b&" * 2500), 414, b"at most 8000"),
    ],
)
def test_a_head_with_two_readings_is_refused(shared: Shared, data: bytes, status: int, words: bytes) -> None:
    triton, http = shared
    found, answer = sent(http, data)
    assert found == status and words in answer
    assert b"Traceback" not in answer and http.get("/metrics").status_code == 200
    if status != 200:
        assert triton.speeches == []


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost/health", "localhost", 200),
        ("HTTP://localhost:8080/health?x=1", "evil.example", 200),
        ("http://evil.example/v1/models", "localhost", 421),
        ("https://localhost/v1/models", "evil.example", 200),
        ("http://a@localhost/v1/models", "localhost", 421),
        ("http://localhost", "localhost", 200),
        ("http:///health", "localhost", 404),
        ("localhost:80", "localhost", 404),
    ],
)
def test_a_target_with_a_host(shared: Shared, target: str, host: str, status: int) -> None:
    _, http = shared
    assert sent(http, f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())[0] == status


def test_a_websocket_by_a_target_with_a_host(shared: Shared) -> None:
    _, http = shared
    for host, status in (("localhost", 101), ("evil.example", 421)):
        assert sent(http, UPGRADE.replace("GET /", f"GET http://{host}/").encode() + b"\r\n")[0] == status


def test_invented_methods_are_counted_as_one(triton: Server, serve: Serve) -> None:
    http = serve(triton.url)
    for method in ("FOO", "BAR", "GE", "GETS"):
        assert http.request(method, "/health").status_code == 405
    counted = [line for line in http.get("/metrics").text.splitlines() if "requests_total{" in line]
    assert sum('method="other"' in line for line in counted) == 1
    assert not any('method="FOO"' in line for line in counted)


@pytest.mark.parametrize("again", [b"zz\r\n", b"5;\r\nab\r\n\r\n"])
def test_a_body_that_breaks_behind_its_answer(
    triton: Server, serve: Serve, again: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    http = serve(triton.url)
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=20) as connection:
        connection.sendall(CHUNKED.replace(b"/v1/audio/speech", b"/nowhere") + b"\r\n5\r\nabcde\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 404")
        connection.sendall(again)
        connection.sendall(b"")
        while connection.recv(4096):
            pass
    assert "failed" not in caplog.text and http.get("/metrics").status_code == 200


GETS = (
    "/",
    "/page/app.js",
    "/health",
    "/metrics",
    "/openapi.json",
    "/v1/models",
    "/v1/models/tts-1",
    "/v1/audio/speech/0123",
    "/v1/audio/jobs",
    "/v1/audio/jobs/job_0",
    "/v1/audio/jobs/job_0/content",
    "/v1/audio/voices",
    "/v1/audio/voices/ada",
    "/v1/audio/voices/ada/audio",
    "/v1/audio/voices/ada/export",
    "/v1/audio/bundle",
    "/v1/models/",
    "/nowhere",
)


def test_head_answers_where_get_does(triton: Server, serve: Serve) -> None:
    triton.answer = lambda inputs: {"result": json.dumps(RECORD).encode(), "artifacts": bundle()}
    http = serve(triton.url)
    described = {path for path, entry in http.get("/openapi.json").json()["paths"].items() if "get" in entry}
    names = {"/ada": "/{name}", "/tts-1": "/{model}", "/0123": "/{speech_id}", "/job_0": "/{job_id}"}
    asked = {re.sub("|".join(names), lambda found: names[found[0]], path) for path in GETS}
    assert described <= asked, "each path with GET is tried"
    for path in GETS:
        got, head = http.get(path), http.head(path)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        assert head.headers["content-type"] == got.headers["content-type"]
        if not path.endswith(("/export", "/bundle", "/metrics")):  # what is exported has no size before it is made
            assert head.headers["content-length"] == got.headers["content-length"], path
    assert http.head("/v1/audio/speech").status_code == 405
    assert http.put("/v1/models").headers["allow"] == "GET, HEAD"


def test_head_exports_nothing(shared: Shared) -> None:
    triton, http = shared
    triton.answer = lambda inputs: {"result": json.dumps(RECORD).encode(), "artifacts": b""}
    for path in ("/v1/audio/voices/ada/audio", "/v1/audio/voices/ada/export", "/v1/audio/bundle"):
        assert http.head(path).status_code == 200
    assert b"export" not in [inputs["operation"] for _, inputs in triton.calls]


def bundle() -> bytes:
    """A bundle of one voice whose clip has the size of the record."""
    file = save({"audio": np.zeros(RECORD["file_size"], np.uint8)})
    return save({"0": np.frombuffer(file, np.uint8)})


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/audio/voices/ada/", "/health/"])
def test_a_slash_at_the_end_is_ignored_and_sends_no_one_away(shared: Shared, path: str) -> None:
    triton, http = shared
    triton.answer = lambda inputs: {"result": json.dumps(RECORD).encode()}
    assert http.get(path).status_code == 200
    for headers in ({"Host": "evil.example"}, {"Host": "localhost"}):
        answer: Any = http.get(path, headers=headers)
        assert answer.status_code in (200, 421) and "location" not in answer.headers


WEBSOCKETS = ("/v1/audio/speech/stream", "/v1/speak", "/v1/text-to-speech/ada/stream-input?model_id=x")


@pytest.mark.parametrize("path", [*WEBSOCKETS, "/v1/text-to-speech/ada/multi-stream-input/"])
@pytest.mark.parametrize("connection", ["Connection: close", "Connection: Upgrade\r\nUpgrade: h2c", "X: y"])
def test_a_websocket_whose_upgrade_a_proxy_dropped(
    triton: Server, serve: Serve, tmp_path: Path, path: str, connection: str
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("key speak\n")
    http = serve(triton.url, api_keys_file=str(keys))
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{connection}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    status, answer = sent(http, head.encode())
    assert status == 426 and b"upgrade: websocket" in answer.lower() and b"proxy" in answer
    assert http.post(path.partition("?")[0]).status_code in (401, 404, 405)  # at some there is a POST, too
