"""Reference audio of a request: a data URL, or a URL from which it is fetched.

A URL makes the gateway a client on behalf of an untrusted caller. Therefore: only http and https, on few ports, without
credentials; a host is resolved once and all its addresses must be public; the connection uses a checked address, and no
second lookup; each redirect is treated like a new URL; proxies of the environment are not used; size, time and type are
bounded; and the errors do not distinguish one private host from another.

With `--reference-proxy` the proxy looks the host up and connects. If this machine can look the name up, too, its
addresses must be public; for any other name the proxy decides.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import httpcore2
from voice_clone_client import InvalidArgument

from ..audio.clips import ClipReader
from ..http.errors import HTTPFailure
from ..http.limits import Gate
from ..settings import Network, Settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[list[str]]]
MAX_URL = 4096
"""Characters."""
_REDIRECTS = (301, 302, 303, 307, 308)
_TYPES = ("audio/", "video/", "application/octet-stream", "application/ogg", "binary/octet-stream")

_FAILURES = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.TimeoutException,
    httpcore2.UnsupportedProtocol,
)

# IPv6 networks whose addresses contain the IPv4 address that is checked, and the number of bits after it.
_CARRIERS = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped, RFC 4291
    (ipaddress.IPv6Network("::/96"), 0),  # IPv4-compatible, RFC 4291
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64, RFC 6052
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4, RFC 3056
)
# Never global, although `ipaddress` classifies some of them as global, depending on the version of Python.
_REFUSED = tuple(
    ipaddress.ip_network(text)
    for text in (
        "100.64.0.0/10",  # carrier-grade NAT, RFC 6598
        "168.63.129.16/32",  # metadata of Azure
        "192.0.0.0/24",  # RFC 6890, and metadata of Oracle
        "192.88.99.0/24",  # 6to4 relays, RFC 7526
        "64:ff9b:1::/48",  # local NAT64, RFC 8215
        "100::/64",  # discard, RFC 6666
        "2001::/23",  # Teredo, ORCHID, benchmarks, RFC 2928
        "3fff::/20",  # documentation, RFC 9637
        "5f00::/16",  # segment routing, RFC 9602
        "fec0::/10",  # site-local, RFC 3879
    )
)


def is_public(address: Address, allowed: Iterable[Network] = ()) -> bool:
    """Whether the gateway may connect to `address` for an untrusted caller.

    Args:
        address: any.
        allowed: private networks that the operator permits.
    """
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        for network, behind in _CARRIERS:
            if address in network:
                return is_public(ipaddress.IPv4Address(int(address) >> behind & 0xFFFFFFFF), allowed)
    if any(address in network for network in allowed if network.version == address.version):
        return True
    if any(address in network for network in _REFUSED if network.version == address.version):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved and not address.is_unspecified


class Resolver:
    """The system's resolver, in threads of its own: a name whose server is silent keeps its thread for long.

    Args:
        threads: lookups at once. Further ones are refused, for they would wait behind the silent ones; but not those of
            a caller that has less than its share.
    """

    def __init__(self, threads: int = 16) -> None:
        self._gate = Gate(threads, "lookups of hosts of reference audio")

    async def __call__(self, host: str, port: int) -> list[str]:
        """All addresses of a host.

        Raises:
            OSError: the host has none.
            Overloaded: all threads are busy.
        """
        thread = ExitStack()
        thread.enter_context(self._gate.pass_through())
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()

        def finish(found: list[str] | OSError) -> None:
            thread.close()
            if answer.done():  # the caller gave up
                return
            if isinstance(found, OSError):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def look_up() -> None:
            found: list[str] | OSError
            try:
                entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                found = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
            except (OSError, UnicodeError) as error:
                found = OSError(str(error))
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(finish, found)

        # A daemon: the gateway's end does not wait for a silent name server.
        threading.Thread(target=look_up, name="resolver", daemon=True).start()
        return await answer


class References:
    """Loads reference audio.

    Args:
        settings: the fields `reference_*`.
        resolve: looks a host up; by default a Resolver.
        clips: decodes what the server does not read.

    Raises:
        ValueError: the proxy is none.
    """

    def __init__(self, settings: Settings, resolve: Resolve | None = None, clips: ClipReader | None = None) -> None:
        self._schemes = {"off": (), "https": ("https",), "http": ("https", "http")}[settings.reference_urls]
        self._ports = settings.reference_ports
        self._networks = settings.reference_networks
        self._most = settings.reference_bytes
        self._seconds = settings.reference_seconds
        self._redirects = settings.reference_redirects
        self._proxy = _proxy(settings.reference_proxy) if settings.reference_proxy else None
        self._resolve = resolve or Resolver()
        self._clips = clips or ClipReader()

    async def load(self, source: str, hold: Callable[[int], None] = lambda _: None) -> bytes:
        """The clip in a format that the server reads; a data URL of such a clip is returned unchanged.

        Args:
            hold: called with the bytes that the gateway holds from now on; may raise.

        Raises:
            HTTPFailure: 400, the source is neither, or cannot be fetched or decoded.
        """
        if source[:5].lower() == "data:":
            clip = source.encode()
            hold(len(clip))
        else:
            try:
                clip = await asyncio.wait_for(self._fetch(source, hold), self._seconds)
            except asyncio.TimeoutError:
                raise _refusal(f"it did not arrive within {self._seconds:g} s") from None
        try:
            return await self._clips.readable(clip)
        except InvalidArgument as error:
            raise _refusal(str(error)) from None

    async def _fetch(self, url: str, hold: Callable[[int], None]) -> bytes:
        for _ in range(self._redirects + 1):
            parts = self._check(url)
            async with await self._pool(parts) as pool:
                found = await self._get(pool, parts, hold)
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
        raise _refusal(f"it redirects more than {self._redirects} times")

    async def _pool(self, parts: SplitResult) -> httpcore2.AsyncConnectionPool:
        """Connects to the host of a URL.

        Raises:
            HTTPFailure: through the proxy, too, it may not.
        """
        if self._proxy is None:
            return httpcore2.AsyncConnectionPool(network_backend=_Pinned(self._addresses))
        assert parts.hostname is not None
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        await self._addresses(parts.hostname, port)
        url, user = self._proxy
        return httpcore2.AsyncHTTPProxy(url, proxy_auth=user)

    def _check(self, url: str) -> SplitResult:
        """The parts of a URL that may be fetched.

        Raises:
            HTTPFailure: it may not.
        """
        kinds = " or ".join(("data:audio/...;base64,", *(f"{scheme}://" for scheme in self._schemes)))
        if len(url) > MAX_URL:
            raise _refusal(f"its URL has {len(url)} characters; at most {MAX_URL} are allowed")
        try:
            parts = urlsplit(url)
            _ = parts.port  # a number
        except ValueError:
            raise _refusal("it is no valid URL") from None
        if parts.scheme not in self._schemes:
            raise _refusal(f"it must begin with {kinds}")
        if parts.username is not None or parts.password is not None:
            raise _refusal("it must not hold credentials")
        if not parts.hostname or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
            raise _refusal("it is no valid URL; encode what is not ASCII")
        return parts

    async def _addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a host, all of which are public; none if only the proxy can look it up.

        Raises:
            HTTPFailure: the host has none, or one that is not public; or the port is not allowed.
        """
        if port not in self._ports:
            raise _refusal(f"its port must be one of {', '.join(map(str, self._ports))}")
        try:
            found = await self._resolve(host, port)
            addresses = [ipaddress.ip_address(address) for address in found]
        except (OSError, ValueError):
            if self._proxy is not None:
                return []
            raise self._unreachable() from None
        if not addresses or not all(is_public(address, self._networks) for address in addresses):
            raise self._unreachable()
        return [str(address) for address in addresses]

    async def _get(
        self, pool: httpcore2.AsyncConnectionPool, parts: SplitResult, hold: Callable[[int], None]
    ) -> bytes | str:
        """The body, or the target of a redirect."""
        target = parts._replace(fragment="").geturl()
        headers = {"Accept": "audio/*", "Accept-Encoding": "identity", "User-Agent": "voice-clone-gateway"}
        try:
            async with pool.stream("GET", target, headers=list(headers.items())) as response:
                headers_by_name = {name.lower().decode(): value.decode("latin-1") for name, value in response.headers}
                if response.status in _REDIRECTS and "location" in headers_by_name:
                    return headers_by_name["location"]
                if response.status != 200:
                    raise _refusal(f"its server answered with status {response.status}")
                kind = headers_by_name.get("content-type", "application/octet-stream").strip().lower()
                if not kind.startswith(_TYPES) or headers_by_name.get("content-encoding", "identity") != "identity":
                    raise _refusal("it is no audio; its Content-Type must be audio/... or video/...")
                return await self._body(response, headers_by_name, hold)
        except _FAILURES:
            raise self._unreachable() from None

    def _unreachable(self) -> HTTPFailure:
        """One text for every cause, which maps no private network."""
        return _refusal(f"its host cannot be reached{' through the proxy of this gateway' if self._proxy else ''}")

    async def _body(self, response: httpcore2.Response, headers: dict[str, str], hold: Callable[[int], None]) -> bytes:
        announced = headers.get("content-length", "0")
        body = bytearray()
        if not announced.isdigit() or int(announced) <= self._most:
            async for piece in response.aiter_stream():
                hold(len(piece))
                body += piece
                if len(body) > self._most:
                    break
            else:
                return bytes(body)
        raise _refusal(f"it is larger than {self._most} bytes")


class _Pinned(httpcore2.AsyncNetworkBackend):
    """Connects to checked addresses; only the Host header and the TLS handshake have the name."""

    def __init__(self, addresses: Resolve) -> None:
        self._addresses = addresses
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.AsyncNetworkStream:
        error: Exception = httpcore2.ConnectError()
        for address in await self._addresses(host, port):
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore2.ConnectError as failed:
                error = failed
        raise error

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Any = None
    ) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.UnsupportedProtocol("no sockets of this machine")

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


def _proxy(url: str) -> tuple[str, tuple[str, str] | None]:
    """A proxy without the user in it, and the user with the password.

    Raises:
        ValueError: it is none.
    """
    try:
        parts = urlsplit(url)
        wrong = parts.scheme != "http" or not parts.hostname or parts.port is None or parts.path not in ("", "/")
    except ValueError:
        wrong = True
    if wrong:
        raise ValueError("reference_proxy is wrong; give http://host:port of an HTTP proxy")
    user = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    return f"http://{parts.netloc.rpartition('@')[2]}", user


def _refusal(why: str) -> HTTPFailure:
    return HTTPFailure(400, f"reference_audio cannot be used: {why}", "invalid_reference", param="reference_audio")
