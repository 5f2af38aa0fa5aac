"""The gateway that tools/serve starts is started again, while its callers wait."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
from collections.abc import Iterator

import httpx2
import pytest
from voice_clone_gateway.listening import bound

from tests.support.waiting import WAIT
from voice_clone_server.gateway_process import SETTLE, GatewayFailed, GatewayProcess
from voice_clone_server.triton_server import free_ports


@contextlib.contextmanager
def gateway(port: int, restarts: int = 5, *options: str) -> Iterator[GatewayProcess]:
    process = GatewayProcess(["--triton", "127.0.0.1:9", *options], "127.0.0.1", port, restarts)
    try:
        yield process
    finally:
        process.kill()
        process.process.wait(WAIT)


def ended(process: GatewayProcess, number: signal.Signals) -> subprocess.Popen[bytes]:
    old = process.process
    old.send_signal(number)
    old.wait(WAIT)
    return old


def test_callers_wait_while_a_gateway_that_was_killed_starts_again(capfd: pytest.CaptureFixture[str]) -> None:
    [port] = free_ports(1)
    with gateway(port, 1) as process:
        process.wait_for("/metrics", first=True)
        old = ended(process, signal.SIGKILL)
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as waiting:
            waiting.sendall(b"GET /v1/no/such HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            process.keep()
            assert process.process is not old
            assert waiting.recv(1 << 10).startswith(b"HTTP/1.1 404")
        process.keep()
        ended(process, signal.SIGKILL)
        with pytest.raises(GatewayFailed):
            process.keep()
    said = capfd.readouterr().err
    assert said.count("ended by itself, with status -9") == 2 and said.count("starting it again (1 of 1)") == 1


def test_another_one_stands_by_and_ends_with_the_first() -> None:
    with gateway(*free_ports(1)) as process:
        process.wait_for("/metrics", first=True)
        process.started -= SETTLE
        process.keep()
        standby = process.standby
        assert standby is not None and standby.poll() is None
        ended(process, signal.SIGKILL)
        process.keep()
        assert process.process is standby and process.standby is None
        process.wait_for("/metrics")
        process.started -= SETTLE / 2
        process.keep()
        other = process.standby
        assert other is not None and other is not standby, "long before the first one"
        process.keep(standby=False)
        assert other.poll() is not None and process.standby is None
        process.keep()
        last = process.standby
        assert last is not None
        process.stop()
        assert last.poll() is not None


def test_a_gateway_that_somebody_ended_is_not_started_again() -> None:
    with gateway(*free_ports(1)) as process:
        process.wait_for("/metrics", first=True)
        ended(process, signal.SIGTERM)
        with pytest.raises(GatewayFailed):
            process.keep()


def test_a_gateway_that_cannot_start_at_all_is_not_tried_again() -> None:
    options = (5, "--api-keys-file", "nowhere")
    with gateway(*free_ports(1), *options) as process, pytest.raises(GatewayFailed, match="did not start"):
        process.wait_for("/metrics", first=True)


def test_a_stop_refuses_new_connections() -> None:
    [port] = free_ports(1)
    with gateway(port) as process:
        process.wait_for("/metrics", first=True)
        process.stop()
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"http://127.0.0.1:{port}/metrics", timeout=WAIT)


def test_a_port_in_use_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(GatewayFailed, match="already in use"):
        GatewayProcess([], "127.0.0.1", taken.getsockname()[1], 5)


def test_of_two_that_start_together_one_is_told() -> None:
    [port] = free_ports(1)
    [first] = bound("127.0.0.1", port)
    with first, pytest.raises(OSError, match="cannot listen"):
        bound("127.0.0.1", port)


def test_sockets_that_are_handed_over_send_at_once() -> None:
    """Without waiting for more (TCP_NODELAY), as asyncio's own sockets do."""

    async def option() -> int:
        [made] = bound("127.0.0.1", 0)
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            found.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with made:
            async with await asyncio.start_server(came, sock=socket.socket(fileno=made.detach())) as server:
                _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                try:
                    return await found
                finally:
                    writer.close()
                    await writer.wait_closed()

    assert asyncio.run(option()) == 1


def test_all_addresses_of_a_host_are_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    [port] = free_ports(1)
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **options: [entry, entry])
    made = bound("localhost", port)
    for each in made:
        each.close()
    assert len(made) == 1
