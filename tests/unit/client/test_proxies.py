"""Connections go straight to the server, unless a proxy is given; errors name it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from voice_clone_client import AsyncClient, Client, ConnectionFailed, InvalidArgument

from tests.support.doubles import http_proxy
from tests.support.doubles.gateway_thread import serving
from tests.support.doubles.http_proxy import HttpProxy
from tests.support.doubles.triton_double import Server, listening

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")


@pytest.fixture
def triton() -> Iterator[Server]:
    with listening() as server:
        yield server


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpProxy]:
    """A proxy, and an environment in which no address is excepted from it."""
    for name in ("no_proxy", "no_grpc_proxy", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with http_proxy.running() as found:
        yield found


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_environment_is_not_asked(
    triton: Server, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, proxy.url)

    async def speak() -> int:
        async with AsyncClient(triton.url) as client:
            return len([chunk async for chunk in client.speak("A text.", voice="ada")])

    with Client(triton.url) as client:
        assert len(list(client.speak("A text.", voice="ada"))) == 3
    assert asyncio.run(speak()) == 3
    with serving() as serve:
        answer = serve(triton.url).post("/v1/audio/speech", json={"input": "A text.", "voice": "ada"})
        assert answer.status_code == 200
    command = [sys.executable, "-m", "voice_clone_command.cli", "--url", triton.url, "models"]
    assert subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    assert not proxy.asked


def test_a_proxy_that_is_given(triton: Server, proxy: HttpProxy) -> None:
    async def speak() -> int:
        async with AsyncClient(triton.url, proxy=proxy.url) as client:
            return len([chunk async for chunk in client.speak("A text.", voice="ada")])

    with Client(triton.url, proxy=proxy.url) as client:
        assert len(list(client.speak("A text.", voice="ada"))) == 3
    assert asyncio.run(speak()) == 3
    with serving() as serve:
        http = serve(triton.url, triton_proxy=proxy.url)
        assert http.post("/v1/audio/speech", json={"input": "A text.", "voice": "ada"}).status_code == 200
    command = [sys.executable, "-m", "voice_clone_command.cli", "--url", triton.url, "--proxy", proxy.url, "models"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert proxy.asked == [f"CONNECT {triton.url} HTTP/1.1"] * 4


def test_errors_name_the_proxy(triton: Server, proxy: HttpProxy) -> None:
    proxy.refuse = True
    given = proxy.url.replace("http://", "http://user:secret@")

    async def speak(client: AsyncClient) -> None:
        async with client:
            await client.speak("A text.", voice="ada", model="qwen3_tts").read()

    with Client(triton.url, proxy=given) as client:
        for call in (client.list, lambda: list(client.speak("A text.", voice="ada", model="qwen3_tts"))):
            with pytest.raises(ConnectionFailed, match=f"through the proxy {proxy.url[7:]}") as error:
                call()
            assert "secret" not in str(error.value)
    with pytest.raises(ConnectionFailed, match=f"through the proxy {proxy.url[7:]}"):
        asyncio.run(speak(AsyncClient(triton.url, proxy=given)))


def test_errors_name_a_variable_that_was_not_used(proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client("127.0.0.1:9") as client:
        with pytest.raises(ConnectionFailed) as error:
            client.list()
        assert "proxy" not in str(error.value)
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(ConnectionFailed, match="https_proxy is set, but a proxy is used only if it is given"):
            client.list()


@pytest.mark.parametrize("wrong", ["proxy:3128", "https://proxy:3128", "http://proxy", "http://", "socks5://a:1"])
def test_no_proxy_at_all(wrong: str) -> None:
    with pytest.raises(InvalidArgument, match="http://host:port"):
        Client("127.0.0.1:9", proxy=wrong)


def test_an_empty_proxy_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the environment names one."""
    monkeypatch.setenv("VOICE_CLONE_PROXY", "no proxy")
    with pytest.raises(InvalidArgument, match="http://host:port"):
        Client("127.0.0.1:9")
    Client("127.0.0.1:9", proxy="").close()


def test_an_ipv6_address_without_brackets() -> None:
    with pytest.raises(InvalidArgument, match=r"in brackets: \[::1\]:8001"):
        Client("::1:8001")
