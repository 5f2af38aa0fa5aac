"""Sizes of bodies, requests that never come whole, and the settings."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from voice_clone_gateway.app import serve as serve_settings
from voice_clone_gateway.app import server_options
from voice_clone_gateway.http import limits
from voice_clone_gateway.settings import Settings, parse

from tests.support.doubles.gateway_thread import Serve, Shared
from tests.support.doubles.triton_double import Server, speech
from tests.support.waiting import until

JSON = {"Content-Type": "application/json"}


def pieces(total: int) -> Iterator[bytes]:
    """A body that announces no length."""
    yield b'{"input": "'
    for _ in range(total // 1000):
        yield b"x" * 1000


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch", "/v1/audio/voices"])
def test_a_body_that_is_too_large(triton: Server, serve: Serve, path: str, chunked: bool) -> None:
    http = serve(triton.url, max_body_bytes=5000)
    body: Any = pieces(9000) if chunked else b"".join(pieces(9000))
    kind = {"Content-Type": "multipart/form-data; boundary=b"} if path.endswith("voices") else JSON
    if path.endswith("voices"):
        body = (b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\n', *pieces(9000)) if chunked else body
        body = iter(body) if chunked else body
    answer = http.post(path, content=body, headers=kind)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large" and "5000" in answer.json()["error"]["message"]
    assert triton.calls == []


def test_an_announced_length_is_enough(triton: Server, serve: Serve) -> None:
    http = serve(triton.url, max_body_bytes=5000)
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=30) as connection:
        head = "POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 6000\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))  # until the gateway closes it
    assert answer.startswith(b"HTTP/1.1 413") and b"body_too_large" in answer


def test_a_bundle_has_a_limit_of_its_own(triton: Server, serve: Serve) -> None:
    triton.answer = lambda inputs: {"result": b'{"speakers": []}'}
    http = serve(triton.url, max_body_bytes=10, max_bundle_bytes=2000)
    binary = {"Content-Type": "application/octet-stream"}
    assert http.post("/v1/audio/bundle", content=b"x" * 1500, headers=binary).status_code == 200
    assert triton.calls[-1][1]["audio"] == b"x" * 1500
    assert http.post("/v1/audio/bundle", content=b"x" * 2500, headers=binary).status_code == 413


def test_a_refusal_before_the_body_is_read_arrives(triton: Server, serve: Serve) -> None:
    http = serve(triton.url, max_body_bytes=10)
    for _ in range(20):
        assert http.post("/nowhere", content=b"x" * 500_000).status_code == 404
        assert http.post("/v1/audio/speech", content=b"x" * 500_000).status_code == 413


def test_the_parser_is_the_one_that_was_attacked() -> None:
    """The tests below pass with it; uvicorn would take httptools, with which they fail, if it were installed."""
    assert issubclass(server_options(Settings())["http"].func, H11Protocol)


@pytest.mark.parametrize("start", ["GET /", "GET / HTTP/1.1\r\nHost: x\r\nX-Long: ", "GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_without_an_end(shared: Shared, start: str) -> None:
    _, http = shared
    more = b"x" * 8192 if not start.endswith("\n") else b"a: b\r\n" * 1000
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=30) as connection:
        connection.sendall(start.encode())
        with pytest.raises(ConnectionError):
            for _ in range(10_000):
                connection.sendall(more)
    assert http.get("/metrics").status_code == 200


HEAD = b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("drip", [b"", b" "])
@pytest.mark.parametrize("start", [b"", HEAD, HEAD + b"Content-Length: 9999\r\n\r\n"])
def test_a_request_that_never_comes_whole(
    triton: Server, serve: Serve, start: bytes, drip: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GRACE_SECONDS", 0.4)
    http = serve(triton.url, head_seconds=0.4)
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=0.1) as connection:
        connection.sendall(start)
        deadline = time.monotonic() + 30
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(4096):
                        break
                connection.sendall(drip)
        assert time.monotonic() < deadline, "the connection stays open"

    def answers() -> bool:
        with contextlib.suppress(httpx2.TransportError):  # it has as little time
            return http.get("/metrics").status_code == 200
        return False

    until(answers)


def test_a_whole_request_may_take_longer_than_its_parts(triton: Server, serve: Serve) -> None:
    def slow(context: Any) -> Iterator[Any]:
        for message in speech(4):
            time.sleep(0.6)
            yield message

    triton.play = slow
    http = serve(triton.url, head_seconds=2.0)
    for _ in range(2):  # over the same connection
        answer = http.post("/v1/audio/speech", json={"input": "x", "voice": "ada", "response_format": "pcm"})
        assert answer.status_code == 200 and len(answer.content) == 4 * 2 * 1920


def test_a_websocket_is_opened_by_get_alone(shared: Shared) -> None:
    triton, http = shared
    triton.play = lambda context: speech(2)
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    assert http.post("/v1/audio/speech", json={"input": "x", "voice": "ada"}, headers=upgrade).status_code == 200
    assert http.post("/v1/audio/speech/stream", json={}, headers=upgrade).status_code in (404, 405)


def test_protocols_that_are_not_spoken_here_do_not_cost_the_body(triton: Server, serve: Serve) -> None:
    """Java's client, and curl --http2, ask for HTTP/2 with their first request."""
    triton.play = lambda context: speech(2)
    upgrade = {
        "Connection": "Upgrade, HTTP2-Settings",
        "Upgrade": "h2c",
        "HTTP2-Settings": "AAEAAEAAAAIAAAAAAAMAAABkAAQBAAAAAAUAAEAA",
    }
    answer = serve(triton.url).post("/v1/audio/speech", json={"input": "x", "voice": "ada"}, headers=upgrade)
    assert answer.status_code == 200


def test_a_text_that_is_too_long(triton: Server, serve: Serve) -> None:
    answer = serve(triton.url, max_input_characters=20).post(
        "/v1/audio/speech", json={"input": "a" * 21, "voice": "ada"}
    )
    assert answer.status_code == 400 and "at most 20" in answer.json()["error"]["message"]


def test_the_option_goes_before_the_variable() -> None:
    environment = {"VOICE_CLONE_GATEWAY_PORT": "81", "VOICE_CLONE_GATEWAY_MODEL_ALIASES": "tts-1, tts-1-hd=made_up"}
    settings = parse(["--port", "82", "--reference-ports", "443,8443", "--page", "no"], environment)
    assert settings.port == 82 and settings.model_aliases == ("tts-1", "tts-1-hd=made_up")
    assert settings.reference_ports == (443, 8443) and settings.page is False
    assert parse([], {}) == Settings() and Settings().model == "", "the server's default"
    assert parse(["--missed-end-retries", "0"], {}).missed_end_retries == 0
    empty = {f"VOICE_CLONE_GATEWAY_{name}": "" for name in ("PORT", "STRICT", "STALL_SECONDS", "VOICE_LIST", "HOST")}
    assert parse([], empty) == Settings(), "as not set"
    assert parse([], {"VOICE_CLONE_GATEWAY_MODEL_ALIASES": ""}).model_aliases == ()


def test_a_mistyped_variable_is_refused_and_those_of_a_container_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([], {"VOICE_CLONE_GATEWAY_API_KEY": "k speak"})
    assert "did you mean VOICE_CLONE_GATEWAY_API_KEYS?" in capsys.readouterr().err
    kubernetes = {"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "80", "PORT_80_TCP": "tcp://x", "PORT_80_TCP_ADDR": "x"}
    assert parse([], {f"VOICE_CLONE_GATEWAY_{name}": value for name, value in kubernetes.items()})


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        (["--port", "many"], {}, "invalid int value: 'many'"),
        ([], {"VOICE_CLONE_GATEWAY_PORT": "many"}, "invalid int value: 'many'"),
        ([], {"VOICE_CLONE_GATEWAY_REFERENCE_URLS": "ftp"}, "must be one of off, https, http"),
        (["--batch-parallel", "0"], {}, "--batch-parallel: it must be more than 0, not 0"),
        ([], {"VOICE_CLONE_GATEWAY_STALL_SECONDS": "nan"}, "--stall-seconds: it must be more than 0, not nan"),
        (["--missed-end-retries", "-1"], {}, "--missed-end-retries: it must be 0 or more, not -1"),
        (["--page", "perhaps"], {}, "'perhaps' is neither true nor false"),
        (["--reference-networks", "10.0.0.1/8"], {}, "10.0.0.1/8 has host bits set"),
        (["--reference-ports", "443,https"], {}, "'https' is no port"),
        (["--model-aliases", "tts-1,a=b=c"], {}, "'a=b=c' is neither ALIAS nor ALIAS=FAMILY"),
    ],
)
def test_a_wrong_setting_ends_the_command(
    arguments: list[str], environment: dict[str, str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as failure:
        parse(arguments, environment)
    said = capsys.readouterr().err
    assert failure.value.code == 2 and "usage" in said and reason in said


@pytest.mark.parametrize("name", ["input", "voice", "language", "reference_text", "model"])
def test_lone_surrogates_are_no_text(shared: Shared, name: str) -> None:
    triton, http = shared
    body = '{"input": "x", "voice": "ada", "NAME": "\\ud800"}'.replace("NAME", name)
    answer = http.post("/v1/audio/speech", content=body, headers=JSON)
    assert answer.status_code == 400 and answer.json()["error"]["param"].startswith(name)
    assert triton.asked == []


@pytest.mark.parametrize(
    ("host", "port", "where", "reason"),
    [
        ("192.0.2.1", 8080, "192.0.2.1:8080", "cannot assign requested address"),
        ("2001:db8::1", 8080, "[2001:db8::1]:8080", "address"),
        ("no.such.name.invalid", 8080, "no.such.name.invalid:8080", "name"),
        ("127.0.0.1", 70000, "127.0.0.1:70000", "they end at 65535"),
        ("127.0.0.1", None, "127.0.0.1", "address already in use"),
    ],
)
def test_where_it_cannot_listen(host: str, port: int | None, where: str, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        chosen = taken.getsockname()[1] if port is None else port
        with pytest.raises(SystemExit) as ended:
            serve_settings(parse(["--host", host, "--port", str(chosen)]))
    said = str(ended.value)
    assert said.startswith(f"voice-clone-gateway: cannot listen at {where}") and reason in said
