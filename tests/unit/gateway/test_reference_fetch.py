"""Reference audio by URL: what is private gets no packet, what is public is fetched within limits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from voice_clone_gateway import Settings
from voice_clone_gateway.http.errors import HTTPFailure
from voice_clone_gateway.http.outgoing import Resolver, is_public
from voice_clone_gateway.voices.reference_fetch import References

from tests.support.doubles import http_proxy
from tests.support.waiting import WAIT

CLIP = b"RIFF-not-really-audio" * 100


@dataclass
class Listener:
    """A server of this machine: the target that must not be reached, or one that is allowed. Answers with a script."""

    port: int = 0
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)
    pause: threading.Event = field(default_factory=threading.Event)


def reply(status: str = "200 OK", body: bytes = CLIP, **headers: str) -> bytes:
    named = {"Content-Type": "audio/wav", "Content-Length": str(len(body)), "Connection": "close"}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in named.items() if value)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Listens on the loopback interface, IPv4 and (where there is one) IPv6."""
    found = Listener()
    stop = threading.Event()
    sockets = [socket.create_server(("127.0.0.1", 0))]
    found.port = sockets[0].getsockname()[1]
    with contextlib.suppress(OSError):
        sockets.append(socket.create_server(("::1", found.port), family=socket.AF_INET6))

    def serve(listening: socket.socket) -> None:
        while True:
            connection, _ = listening.accept()
            with connection:
                if stop.is_set():
                    return
                found.connections += 1
                connection.settimeout(5)
                with contextlib.suppress(OSError):
                    found.requests.append(connection.recv(65536))
                    answer = found.answers.pop(0) if found.answers else reply()
                    if answer:
                        connection.sendall(answer)
                    else:
                        found.pause.wait(10)

    threads = [threading.Thread(target=serve, args=(each,)) for each in sockets]
    for thread in threads:
        thread.start()
    yield found
    stop.set()
    found.pause.set()
    for thread, each in zip(threads, sockets, strict=True):
        socket.create_connection(each.getsockname()[:2]).close()
        thread.join()
        each.close()


class Names:
    """A name server in memory: each name with the answers to its questions, the last of which repeats."""

    def __init__(self, **names: Sequence[Sequence[str]]) -> None:
        self.names = {name.replace("_", "."): [list(answer) for answer in answers] for name, answers in names.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host in self.names:
            answers = self.names[host]
            return answers.pop(0) if len(answers) > 1 else answers[0]
        return await Resolver()(host, port)  # numbers in all their spellings, and localhost


class Unknown(Names):
    """A name server that knows no name."""

    async def __call__(self, host: str, port: int) -> list[str]:
        raise OSError("unknown")


def load(url: str, listener: Listener, names: Names | None = None, **settings: Any) -> bytes:
    """What `References` makes of a URL, with the listener's port allowed."""
    chosen = Settings(reference_urls="http", reference_ports=(80, 443, listener.port), **settings)
    return asyncio.run(References(chosen, names or Names()).load(url.replace("PORT", str(listener.port))))


HOSTS = {
    "loopback": "127.0.0.1",
    "loopback elsewhere": "127.8.8.8",
    "loopback in short": "127.1",
    "loopback as a number": "2130706433",
    "loopback in hex": "0x7f000001",
    "loopback in hex parts": "0x7f.0.0.1",
    "loopback in octal": "0177.0.0.1",
    "loopback in octal, all": "017700000001",
    "this host": "0.0.0.0",
    "this host in short": "0",
    "localhost": "localhost",
    "localhost with a dot": "localhost.",
    "IPv6 loopback": "[::1]",
    "IPv6 unspecified": "[::]",
    "IPv4-mapped": "[::ffff:127.0.0.1]",
    "IPv4-mapped in hex": "[::ffff:7f00:1]",
    "IPv4-compatible": "[::127.0.0.1]",
    "NAT64": "[64:ff9b::7f00:1]",
    "NAT64 of a private host": "[64:ff9b::10.0.0.1]",
    "local NAT64": "[64:ff9b:1::7f00:1]",
    "6to4": "[2002:7f00:1::]",
    "6to4 of metadata": "[2002:a9fe:a9fe::1]",
    "Teredo": "[2001:0:7f00:1::]",
    "private 10": "10.0.0.1",
    "private 172": "172.16.0.1",
    "private 192": "192.168.1.1",
    "link-local": "169.254.0.1",
    "metadata": "169.254.169.254",
    "metadata as a number": "2852039166",
    "metadata IPv4-mapped": "[::ffff:169.254.169.254]",
    "metadata of AWS, IPv6": "[fd00:ec2::254]",
    "metadata of Azure": "168.63.129.16",
    "metadata of Oracle": "192.0.0.192",
    "metadata of Alibaba": "100.100.100.200",
    "carrier-grade NAT": "100.64.0.1",
    "benchmarks": "198.18.0.1",
    "documentation": "192.0.2.1",
    "6to4 relay": "192.88.99.1",
    "multicast": "224.0.0.1",
    "broadcast": "255.255.255.255",
    "reserved": "240.0.0.1",
    "IPv6 link-local": "[fe80::1]",
    "IPv6 link-local with a zone": "[fe80::1%25lo]",
    "IPv6 unique local": "[fc00::1]",
    "IPv6 site-local": "[fec0::1]",
    "IPv6 multicast": "[ff02::1]",
    "IPv6 documentation": "[2001:db8::1]",
    "full-width digits": "１２７.0.0.1",
    "circled digits": "①②⑦.⓪.⓪.①",
    "a name of a private host": "inside.example",
    "a name of both kinds": "both.example",
    "a name of a mapped address": "mapped.example",
    "a name without an address": "nothing.example",
}
NAMES = {
    "inside_example": [["10.1.2.3"]],
    "both_example": [["93.184.215.14", "127.0.0.1"]],
    "mapped_example": [["::ffff:127.0.0.1"]],
    "nothing_example": [[]],
}


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses to which a connection was begun; none gets through."""
    addresses: list[str] = []

    async def connect(remote_host: str, **given: Any) -> Any:
        addresses.append(remote_host)
        raise OSError

    monkeypatch.setattr("anyio.connect_tcp", connect)
    return addresses


@pytest.mark.parametrize("case", HOSTS)
def test_private_hosts_get_no_packet(listener: Listener, connected: list[str], case: str) -> None:
    for url in ("http://HOST/", "http://HOST:80/clip.wav", "http://HOST:PORT/", "https://HOST/", "https://HOST:PORT/"):
        with pytest.raises(HTTPFailure) as failure:
            load(url.replace("HOST", HOSTS[case]), listener, Names(**NAMES))
        assert failure.value.status_code == 400 and failure.value.body()["error"]["param"] == "reference_audio"
    assert connected == [] and listener.connections == 0


def test_public_hosts_get_one(listener: Listener, connected: list[str]) -> None:
    """Without this the test above could not fail."""
    names = Names(public_example=[["93.184.215.14", "2606:4700::1111"]])
    for host in ("1.1.1.1", "[2606:4700::1]", "public.example"):
        with pytest.raises(HTTPFailure, match="cannot be reached"):
            load(f"https://{host}/", listener, names)
    assert connected == ["1.1.1.1", "2606:4700::1", "93.184.215.14", "2606:4700::1111"]


URLS = {
    "a file": "file:///etc/passwd",
    "a path": "/etc/passwd",
    "a relative path": "clip.wav",
    "gopher": "gopher://127.0.0.1:PORT/_GET",
    "ftp": "ftp://127.0.0.1/clip.wav",
    "no scheme": "//127.0.0.1:PORT/clip.wav",
    "a unix socket": "http+unix://%2Fvar%2Frun%2Fdocker.sock/info",
    "credentials": "http://user:password@127.0.0.1:PORT/clip.wav",
    "a user": "http://public.example@127.0.0.1:PORT/clip.wav",
    "a backslash": "http://public.example\\@127.0.0.1:PORT/clip.wav",
    "a fragment before the host": "http://127.0.0.1:PORT#@public.example/",
    "white space": "http://127.0.0.1:PORT /clip.wav",
    "a line break": "http://127.0.0.1:PORT/\r\nX-Injected: 1",
    "no host": "http:///clip.wav",
    "a port that is closed to us": "http://public.example:22/",
    "a port that is none": "http://public.example:99999/",
    "an empty URL": "",
}


@pytest.mark.parametrize("case", URLS)
def test_a_url_that_is_not_public_is_refused(listener: Listener, case: str) -> None:
    names = Names(public_example=[["127.0.0.1"]])
    with pytest.raises(HTTPFailure) as failure:
        load(URLS[case], listener, names)
    assert failure.value.status_code == 400 and "password" not in failure.value.detail
    assert listener.connections == 0


OPEN = {"reference_networks": (ip_network("127.0.0.2/32"), ip_network("127.0.0.1/32"))}


def test_a_public_clip_is_fetched(listener: Listener) -> None:
    names = Names(public_example=[["127.0.0.1"]])
    assert load("http://public.example:PORT/a/clip.wav?key=1#part", listener, names, **OPEN) == CLIP
    [request] = listener.requests
    assert request.startswith(b"GET /a/clip.wav?key=1 HTTP/1.1\r\n")
    assert f"host: public.example:{listener.port}".encode() in request.lower()
    assert names.asked == ["public.example"]


def test_a_name_that_changes_its_address_is_resolved_once(listener: Listener) -> None:
    """DNS rebinding: the second answer would be private, and the gateway does not ask for it."""
    names = Names(rebind_example=[["127.0.0.1"], ["10.0.0.1"]])
    assert load("http://rebind.example:PORT/", listener, names, **OPEN) == CLIP
    assert names.asked == ["rebind.example"]


@pytest.mark.parametrize(
    "target",
    [
        "http://inside.example/",
        "http://169.254.169.254/latest/meta-data/",
        "//127.0.0.3:PORT/",
        "file:///etc/passwd",
        "http://user@public.example:PORT/",
        "http://public.example:22/",
    ],
)
@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_a_redirect_is_no_way_in(listener: Listener, status: str, target: str) -> None:
    names = Names(public_example=[["127.0.0.1"]], inside_example=[["10.1.2.3"]])
    listener.answers = [reply(status, b"", Location=target.replace("PORT", str(listener.port)))]
    with pytest.raises(HTTPFailure):
        load("http://public.example:PORT/", listener, names, **OPEN)
    assert listener.connections == 1


def test_redirects_are_followed_so_far(listener: Listener) -> None:
    names = Names(public_example=[["127.0.0.1"]])
    moved = reply("302 Found", b"", Location="/next")
    listener.answers = [moved, moved, moved]
    assert load("http://public.example:PORT/", listener, names, **OPEN) == CLIP
    listener.answers = [moved] * 4
    with pytest.raises(HTTPFailure, match="redirects more than 3 times"):
        load("http://public.example:PORT/", listener, names, **OPEN)
    assert listener.connections == 8


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (reply(body=b"x" * 3000), "larger than 2500"),
        (reply(body=b"x" * 3000, Content_Length=""), "larger than 2500"),
        (reply(Content_Type="text/html"), "no audio"),
        (reply(Content_Encoding="gzip"), "no audio"),
        (reply("404 Not Found"), "status 404"),
        (reply("206 Partial Content"), "status 206"),
        (b"SSH-2.0-OpenSSH\r\n", "cannot be reached"),
        (reply(Content_Length="2200"), "cannot be reached"),
        (b"", "within 0.5 s"),
    ],
)
def test_limits(listener: Listener, answer: bytes, message: str) -> None:
    listener.answers = [answer]
    names, seconds = Names(public_example=[["127.0.0.1"]]), WAIT if answer else 0.5
    with pytest.raises(HTTPFailure, match=message) as failure:
        load("http://public.example:PORT/", listener, names, reference_bytes=2500, reference_seconds=seconds, **OPEN)
    assert "127.0.0.1" not in failure.value.detail


def test_the_handshake_names_the_host_not_the_address(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS to a server that is none fails; what it was sent shows the name."""
    names = Names(public_example=[["127.0.0.1"]])
    listener.answers = [b"no TLS here"]
    with pytest.raises(HTTPFailure, match="cannot be reached"):
        load("https://public.example:PORT/", listener, names, **OPEN)
    assert b"public.example" in listener.requests[0]


def test_urls_can_be_turned_off_or_kept_to_https(listener: Listener) -> None:
    for urls, allowed in (("off", "data:"), ("https", "https://")):
        with pytest.raises(HTTPFailure, match=allowed) as failure:
            asyncio.run(References(Settings(reference_urls=urls)).load("http://public.example/"))
        assert "http://" not in failure.value.detail
    assert asyncio.run(References(Settings(reference_urls="off")).load("data:audio/wav;base64,QQ==")).endswith(b"QQ==")


@pytest.mark.parametrize(
    "address", ["93.184.215.14", "1.1.1.1", "2606:4700::1111", "2002:101:101::", "64:ff9b::1.1.1.1"]
)
def test_public_addresses(address: str) -> None:
    assert is_public(ip_address(address))


def test_a_proxy_of_the_environment_is_not_used(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(public_example=[["127.0.0.1"]])
    with http_proxy.running() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
            monkeypatch.setenv(name.upper(), proxy.url)
        for host in ("127.0.0.1", "public.example"):
            assert load(f"http://{host}:PORT/a.wav", listener, names, **OPEN) == CLIP
        assert not proxy.asked


def test_a_proxy_that_is_given_looks_names_up(listener: Listener) -> None:
    with http_proxy.running() as proxy:
        assert load("http://localhost:PORT/a.wav", listener, Unknown(), reference_proxy=proxy.url) == CLIP
        assert proxy.asked == [f"GET http://localhost:{listener.port}/a.wav HTTP/1.1"]
        proxy.refuse = True
        with pytest.raises(HTTPFailure, match="answered with status 403"):
            load("http://localhost:PORT/a.wav", listener, Unknown(), reference_proxy=proxy.url)
        with pytest.raises(HTTPFailure, match="cannot be reached through the proxy of this gateway"):
            load("http://localhost:PORT/a.wav", listener, Unknown(), reference_proxy="http://127.0.0.1:9")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "10.0.0.1", "[::1]"])
def test_a_proxy_is_asked_for_no_private_address_that_is_known(listener: Listener, host: str) -> None:
    with http_proxy.running() as proxy:
        with pytest.raises(HTTPFailure, match="cannot be reached"):
            load(f"http://{host}:PORT/a.wav", listener, reference_proxy=proxy.url)
        assert not proxy.asked and not listener.connections


@pytest.mark.parametrize("wrong", ["proxy:3128", "https://proxy:3128", "http://proxy", "http://a:b/c"])
def test_no_proxy_at_all(wrong: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        References(Settings(reference_proxy=wrong))
