"""Where the servers are: the addresses that a client was given, or those that a name has.

Where a caller names no server, token or proxy, in Python or in the command, environment variables count.
"""

from __future__ import annotations

import os
import re
import socket
from typing import NamedTuple

from ..errors import ConnectionFailed, InvalidArgument, quoted

SERVER, TOKEN, PROXY = "VOICE_CLONE_SERVER", "VOICE_CLONE_TOKEN", "VOICE_CLONE_PROXY"
PORT = 8001  # of Triton's gRPC endpoint
DEFAULT = f"localhost:{PORT}"
DNS = "dns:///"
REFRESH_SECONDS = 5.0  # for which the addresses of a name are used before it is looked up again
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]@\x00-\x1f\ud800-\udfff]+)(?::(\d{1,5}))?")


class Address(NamedTuple):
    """One server."""

    target: str
    """host:port, for gRPC."""
    name: str | None = None
    """The name in its certificate, if that is not the host."""


class Addresses:
    """The servers of a url.

    Args:
        url: host:port; or several, separated by commas; or dns:///name:port, for all servers that the name has. The
            port is 8001 if none is given; `grpc://` may stand before the host.

    Raises:
        InvalidArgument: it is none of these.
    """

    def __init__(self, url: str) -> None:
        servers = [(part.strip().startswith(DNS), *_split(part.strip(), url)) for part in url.split(",")]
        self._fixed = [Address(_joined(host, port)) for is_name, host, port in servers if not is_name]
        self._names = [(host, port) for is_name, host, port in servers if is_name]

    @property
    def fixed(self) -> list[Address] | None:
        """The servers; None if a name has to be looked up."""
        return None if self._names else self._fixed

    def look_up(self) -> list[Address]:
        """Look up the servers of now. This may take seconds.

        Raises:
            ConnectionFailed: a name has no address.
        """
        found = list(self._fixed)
        for host, port in self._names:
            try:
                entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:  # the second: it can be no name, such as one with two dots
                raise ConnectionFailed(f"the address of {host!r} cannot be found ({error})") from None
            hosts = sorted({str(address[0]) for *_, address in entries})
            found += [Address(_joined(each, port), host) for each in hosts]
        return found


def server(url: str | None) -> str:
    """Return the address of the server."""
    return (os.environ.get(SERVER) or DEFAULT) if url is None else url


def token(given: str | None) -> str | None:
    """Return the write token. An empty one is none."""
    return (os.environ.get(TOKEN) if given is None else given) or None


def proxy(given: str | None) -> str | None:
    """Return the proxy. An empty one is none."""
    return (os.environ.get(PROXY) if given is None else given) or None


def _split(server: str, url: str) -> tuple[str, int]:
    """Split the address of one server into host and port. Without a port it is Triton's own."""
    address = server.removeprefix(DNS).removeprefix("grpc://").removesuffix("/")
    if address.count(":") > 1 and not {"[", "/"} & set(address):
        raise InvalidArgument(f"`url` {quoted(url)} is wrong; an IPv6 address is in brackets: [::1]:{PORT}")
    found = _ADDRESS.fullmatch(address)
    if found is None or (server.startswith(DNS) and not found[2]) or not 0 < int(found[2] or PORT) < 65536:
        raise InvalidArgument(
            f"`url` {quoted(url)} is wrong; give host:port of the server's gRPC endpoint, without a scheme, or several "
            f"of them, separated by commas, or {DNS}name:port"
        )
    return found[1], int(found[2] or PORT)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and "[" not in host else f"{host}:{port}"
