"""Which pages and hosts may use a gateway without keys, and one with keys."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import websockets.sync.client
from voice_clone_gateway.settings import parse
from websockets.exceptions import InvalidStatus

from tests.support.doubles.gateway_thread import Serve, Shared
from tests.support.doubles.triton_double import Server

SPEECH = {"input": "Hello.", "voice": "ada"}
VOICES = "/v1/audio/voices"
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", VOICES, {}),
    ("POST", VOICES, {"data": {"name": "x", "consent": "y"}, "files": {"audio_sample": ("a.wav", b"RIFF")}}),
    ("GET", f"{VOICES}/Ada", {}),
    ("DELETE", f"{VOICES}/Ada", {}),
    ("POST", f"{VOICES}/Ada/cache", {}),
    ("GET", f"{VOICES}/Ada/audio", {}),
    ("GET", f"{VOICES}/Ada/export", {}),
    ("GET", "/v1/audio/bundle", {}),
    ("POST", "/v1/audio/bundle", {"content": b"bundle", "headers": {"Content-Type": "text/plain"}}),
    ("POST", "/v1/audio/speech", {"json": SPEECH}),
    ("POST", "/v1/audio/speech/batch", {"json": {"items": [SPEECH]}}),
    ("GET", "/v1/models", {}),
]


def status(http: Any, method: str, path: str, more: dict[str, Any], **headers: str) -> tuple[int, str]:
    answer = http.request(method, path, **{**more, "headers": {**more.get("headers", {}), **headers}})
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize(("method", "path", "more"), CALLS)
def test_pages_of_others_are_refused(shared: Shared, method: str, path: str, more: dict[str, Any]) -> None:
    triton, http = shared
    for origin in ("https://evil.example", "null", "http://localhost:1", "https://evil.example:8080"):
        assert status(http, method, path, more, Origin=origin) == (403, "forbidden_origin")
    rebound = {"Origin": "http://evil.example:8080", "Host": "evil.example:8080"}
    assert status(http, method, path, more, **rebound) == (421, "forbidden_host")
    assert status(http, method, path, more, Host="evil.example") == (421, "forbidden_host")
    assert triton.asked == []


HARMLESS = ["localhost", "localhost:8080", "127.0.0.1", "[::1]:8080", "192.168.1.7:80", "box:8080", "a.localhost", ""]


@pytest.mark.parametrize("host", HARMLESS)
def test_hosts_that_no_one_else_can_name(shared: Shared, host: str) -> None:
    _, http = shared
    for headers in ({"Host": host}, {"Host": host, "Origin": f"http://{host}"} if host else {"Host": host}):
        assert http.post("/v1/audio/speech", json=SPEECH, headers=headers).status_code == 200


HOSTS = [
    "evil.example@localhost",
    "evil.example\\.localhost",
    "localhost:x",
    "a b",
    "evil.example#.localhost",
    "[::1]x",
]


@pytest.mark.parametrize(
    "host", [*HOSTS, "evil.example/.localhost", "evil.example?.localhost", "[evil.example]", "é.de"]
)
def test_hosts_that_are_none(shared: Shared, host: str) -> None:
    _, http = shared
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=20) as connection:
        connection.sendall(f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 421")


@pytest.mark.parametrize("origin", ["http://[", "http://]", "http://[::1", "://", "http://evil.example@localhost", "x"])
def test_origins_that_are_none(shared: Shared, origin: str) -> None:
    _, http = shared
    answer = http.post("/v1/audio/speech", json=SPEECH, headers={"Origin": origin, "Host": "localhost"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden_origin")


@pytest.mark.parametrize("host", ["voices.example", "voices.example.", "evil.localhost.example", "[::1", "1.2.3.4.5"])
def test_hosts_with_a_dot_are_named(triton: Server, serve: Serve, host: str) -> None:
    refused = serve(triton.url, hosts=("other.example",)).post("/v1/audio/speech", json=SPEECH, headers={"Host": host})
    assert refused.status_code == 421
    if host.startswith("voices"):
        for hosts in (("voices.example",), ("Voices.Example",), ("*",)):
            http = serve(triton.url, hosts=hosts)
            assert http.post("/v1/audio/speech", json=SPEECH, headers={"Host": host}).status_code == 200


def test_a_page_that_is_allowed(triton: Server, serve: Serve) -> None:
    for allowed in ("https://app.example", "*"):
        http = serve(triton.url, cors_origins=(allowed,))
        headers = {"Origin": "https://app.example"}
        assert http.post("/v1/audio/speech", json=SPEECH, headers=headers).status_code == 200


def test_keys_lift_it(triton: Server, serve: Serve, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{'k' * 32} speak,manage\n")
    http = serve(triton.url, api_keys_file=str(keys))
    headers = {"Origin": "https://any.example", "Host": "any.example", "Authorization": f"Bearer {'k' * 32}"}
    assert http.post("/v1/audio/speech", json=SPEECH, headers=headers).status_code == 200
    del headers["Authorization"]
    assert http.post("/v1/audio/speech", json=SPEECH, headers=headers).status_code == 401


def test_health_and_metrics_have_any_host(shared: Shared) -> None:
    _, http = shared
    for path in ("/health", "/metrics"):
        assert http.get(path, headers={"Host": "probe.example"}).status_code == 200


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}])
def test_websockets_are_checked_alike(shared: Shared, headers: dict[str, str]) -> None:
    _, http = shared
    with (
        socket.create_connection((http.base_url.host, http.base_url.port or 80)) as connection,
        pytest.raises(InvalidStatus) as refused,
    ):
        url = f"ws://{headers.get('Host', 'localhost')}/v1/audio/speech/stream"
        origin = {name: value for name, value in headers.items() if name == "Origin"}
        websockets.sync.client.connect(url, sock=connection, additional_headers=origin, proxy=None)
    assert refused.value.response.status_code == (421 if "Host" in headers else 403)
    assert b"forbidden" in refused.value.response.body


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("http://localhost:8000/", "http://localhost:8000"),
        ("HTTPS://App.Example", "https://app.example"),
        ("http://app.example:80", "http://app.example"),
        ("https://app.example:443/", "https://app.example"),
        ("https://app.example:80", "https://app.example:80"),
        ("http://[0:0::1]:8000", "http://[::1]:8000"),
        ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
        ("https://xn--bcher-kva.example", "https://xn--bcher-kva.example"),
        ("app://obsidian.md", "app://obsidian.md"),
        ("null", "null"),
    ],
)
def test_an_origin_is_taken_as_browsers_send_it(triton: Server, serve: Serve, given: str, sent: str) -> None:
    settings = parse(["--cors-origins", f" {given} ,https://other.example"])
    http = serve(triton.url, cors_origins=settings.cors_origins)
    answer = http.get("/v1/models", headers={"Origin": sent})
    assert (answer.status_code, answer.headers.get("access-control-allow-origin")) == (200, sent)


NO_ORIGINS = [
    *("http://localhost:8000/app", "https://*.example.com", "https://a.example,*.b", "http://bücher.example"),
    *("localhost", "localhost:8000", "app.example", "//app.example", "http://", "/", "file:///", "file://a.example"),
    *("http://a@b.example", "http://a.example?", "http://a.example#x", "http://a.example//", "http://a b.example"),
    *("ws://localhost", "wss://app.example", "http://127.1", "http://0x7f.1", "http://[fe80::1%25eth0]"),
    *("http://localhost:x", "http://localhost:99999", "http://[::g]", "http://[::1"),
]


@pytest.mark.parametrize(
    "option",
    [
        *(f"--cors-origins={origin}" for origin in NO_ORIGINS),
        *(
            f"--hosts={host}"
            for host in ("http://a.example", "a.example:80", "*.example.com", "a.b/", "bücher.example")
        ),
    ],
)
def test_what_would_match_nothing_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([option])
    assert option.partition("=")[2].rpartition(",")[2] in capsys.readouterr().err


def test_a_host_is_taken_as_it_is_compared() -> None:
    assert parse(["--hosts", "Voices.Example., *"]).hosts == ("voices.example", "*")


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        (("https://app.example",), "https://app.example", True),
        (("https://app.example",), "https://evil.example", False),
        (("*",), "https://app.example", False),
        (("*", "https://app.example"), "https://app.example", True),
    ],
)
def test_only_named_pages_may_reach_a_private_network(
    triton: Server, serve: Serve, origins: tuple[str, ...], origin: str, allowed: bool
) -> None:
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Private-Network": "true",
    }
    answer = serve(triton.url, cors_origins=origins).options("/v1/audio/speech", headers=asked)
    assert answer.headers.get("access-control-allow-private-network") == ("true" if allowed else None)
    assert answer.is_success == (allowed or "*" in origins)
