"""Where the tools listen, and how they reach it."""

from __future__ import annotations

import http.server
import socket
import threading

import pytest

from voice_clone_server import addresses, serve
from voice_clone_server.triton_server import free_ports


@pytest.mark.parametrize(
    ("host", "numbers", "reached", "shown"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.1:80"),
        ("0.0.0.0", "0.0.0.0", "127.0.0.1", "0.0.0.0:80"),
        ("localhost", "127.0.0.1", "127.0.0.1", "localhost:80"),
        ("::1", "::1", "::1", "[::1]:80"),
        ("[::1]", "::1", "::1", "[::1]:80"),
        ("::", "::", "::1", "[::]:80"),
        ("[::]", "::", "::1", "[::]:80"),
    ],
)
def test_forms_of_an_address(host: str, numbers: str, reached: str, shown: str) -> None:
    assert addresses.numbers_of(host) == numbers
    assert addresses.local(host) == reached
    assert addresses.at(host, 80) == shown


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_port_that_is_in_use(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} is in use"):
            addresses.check_free(host, port)
    addresses.check_free(host, port)


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
@pytest.mark.parametrize("host", ["::1", "::", "[::1]"])
def test_ipv6(host: str) -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            addresses.check_free(host, port)
    addresses.check_free(host, port)


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("192.0.2.1", "this machine has no address 192.0.2.1"),
        ("2001:db8::1", "this machine has no address 2001:db8::1"),
        ("no.such.name.invalid", "'no.such.name.invalid' is no address and no name"),
        ("127.0.0.1:8001", "'127.0.0.1:8001' is no address and no name"),
        ("", "'' is no address and no name"),
    ],
)
@pytest.mark.parametrize("option", ["--host", "--gateway-host"])
def test_hosts_that_are_wrong(capsys: pytest.CaptureFixture[str], option: str, host: str, words: str) -> None:
    grpc, http_port, metrics, gateway = map(str, free_ports(4))
    ports = ["--grpc-port", grpc, "--http-port", http_port, "--metrics-port", metrics, "--gateway", gateway]
    with pytest.raises(SystemExit):
        serve.parse(["--checkpoint", ".", *ports, f"{option}={host}"])
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"{option}: {words}" in error and "in use" not in error


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy", "HTTP_PROXY"])
def test_pages_of_this_machine_need_no_proxy(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = [addresses.status_of("127.0.0.1", server.server_port, path, timeout=10) for path in ("/", "/absent")]
        assert found == [200, 404]
        server.shutdown()


def test_what_is_no_server_of_http_has_no_status() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=lambda: listening.accept()[0].close(), daemon=True).start()
        with pytest.raises(OSError, match=r"HTTP|reset"):
            addresses.status_of("127.0.0.1", listening.getsockname()[1], "/", timeout=10)
    with pytest.raises(ConnectionRefusedError):
        addresses.status_of("127.0.0.1", 1, "/", timeout=10)


@pytest.mark.parametrize(
    "answer",
    [b"", b"xx", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"],
    ids=["none", "not HTTP", "half"],
)
def test_a_server_that_is_killed_while_it_answers_is_away(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve_once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve_once)
        thread.start()
        with pytest.raises(OSError):
            addresses.fetch(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics", 10.0)
        thread.join()
