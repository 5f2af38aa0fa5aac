"""Connections of the gateway to hosts that an untrusted caller names.

Only http and https, on few ports, without credentials; a host is resolved once and all its addresses must be public;
the connection uses a checked address, and no second lookup; proxies of the environment are not used; and the errors do
not distinguish one private host from another. Whoever follows a redirect, or connects again, checks again.

With a proxy that looks the host up and connects: if this machine can look the name up, too, its addresses must be
public; for any other name the proxy decides.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import httpcore2

from ..settings import Network
from .limits import Gate

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[list[str]]]
MAX_URL = 4096
"""Characters."""
SCHEMES = {"off": (), "https": ("https",), "http": ("https", "http")}
"""Of URLs, by the setting that allows them."""
FAILURES = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.TimeoutException,
    httpcore2.UnsupportedProtocol,
)
"""What a connection may raise."""

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
        self._gate = Gate(threads, "lookups of hosts")

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


class Outgoing:
    """Connections to hosts of one purpose.

    Args:
        schemes: of URLs; none: no URL may be used.
        ports: to which it may connect.
        networks: private ones to which it may connect, too.
        refusal: makes the error of a URL that may not be used, or of a host that cannot be reached, of the reason.
        resolve: looks a host up; by default a Resolver.
        proxy: URL of the proxy for all connections; "" for none.
        others: how else than by its schemes a source may begin, for the error.

    Raises:
        ValueError: the proxy is none.
    """

    def __init__(
        self,
        schemes: Collection[str],
        ports: Collection[int],
        networks: Collection[Network],
        refusal: Callable[[str], Exception],
        resolve: Resolve | None = None,
        proxy: str = "",
        others: Collection[str] = (),
    ) -> None:
        self._schemes = schemes
        self._ports = ports
        self._networks = networks
        self._refusal = refusal
        self._resolve = resolve or Resolver()
        self._proxy = _proxy(proxy) if proxy else None
        self._others = others

    def parts(self, url: str) -> SplitResult:
        """The parts of a URL that may be used.

        Raises:
            Exception: the refusal; it may not.
        """
        kinds = " or ".join((*self._others, *(f"{scheme}://" for scheme in self._schemes)))
        if len(url) > MAX_URL:
            raise self._refusal(f"its URL has {len(url)} characters; at most {MAX_URL} are allowed")
        try:
            parts = urlsplit(url)
            _ = parts.port  # a number
        except ValueError:
            raise self._refusal("it is no valid URL") from None
        if parts.scheme not in self._schemes:
            raise self._refusal(f"it must begin with {kinds}")
        if parts.username is not None or parts.password is not None:
            raise self._refusal("it must not hold credentials")
        if not parts.hostname or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
            raise self._refusal("it is no valid URL; encode what is not ASCII")
        return parts

    async def pool(self, parts: SplitResult) -> httpcore2.AsyncConnectionPool:
        """Connects to the host of a URL.

        Raises:
            Exception: the refusal; through the proxy, too, it may not.
        """
        if self._proxy is None:
            return httpcore2.AsyncConnectionPool(network_backend=_Pinned(self.addresses))
        await self.addresses_of(parts)
        url, user = self._proxy
        return httpcore2.AsyncHTTPProxy(url, proxy_auth=user)

    async def addresses_of(self, parts: SplitResult) -> list[str]:
        assert parts.hostname is not None
        return await self.addresses(parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme])

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a host, all of which are public; none if only the proxy can look it up.

        Raises:
            Exception: the refusal; the host has none, or one that is not public; or the port is not allowed.
        """
        if port not in self._ports:
            raise self._refusal(f"its port must be one of {', '.join(map(str, self._ports))}")
        try:
            found = await self._resolve(host, port)
            addresses = [ipaddress.ip_address(address) for address in found]
        except (OSError, ValueError):
            if self._proxy is not None:
                return []
            raise self.unreachable() from None
        if not addresses or not all(is_public(address, self._networks) for address in addresses):
            raise self.unreachable()
        return [str(address) for address in addresses]

    def unreachable(self) -> Exception:
        """One text for every cause, which maps no private network."""
        through = " through the proxy of this gateway" if self._proxy else ""
        return self._refusal(f"its host cannot be reached{through}")


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
