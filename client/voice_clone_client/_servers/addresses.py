"""Where the servers are: the addresses that a client was given, or those that a name has."""

from __future__ import annotations

import socket
from typing import NamedTuple

from ..errors import ConnectionFailed, InvalidArgument, quoted

DNS = "dns:///"
REFRESH_SECONDS = 5.0  # for which the addresses of a name are used before it is looked up again


class Address(NamedTuple):
    """One server."""

    target: str
    """host:port, for gRPC."""
    name: str | None = None
    """The name in its certificate, if that is not the host."""


class Addresses:
    """The servers of a url.

    Args:
        url: host:port; or several, separated by commas; or dns:///name:port, for all servers that the name has.

    Raises:
        InvalidArgument: it is none of these.
    """

    def __init__(self, url: str) -> None:
        parts = [part.strip() for part in url.split(",")]
        for part in parts:
            if not part.removeprefix(DNS) or "://" in part.removeprefix(DNS):
                raise InvalidArgument(
                    f"`url` {quoted(url)} is wrong; give host:port of the server's gRPC endpoint, without a scheme, or "
                    f"several of them, separated by commas, or {DNS}name:port"
                )
            if part.count(":") > 1 and "[" not in part and not part.startswith(DNS):
                raise InvalidArgument(f"`url` {quoted(url)} is wrong; an IPv6 address is in brackets: [::1]:8001")
        self._fixed = [Address(part) for part in parts if not part.startswith(DNS)]
        self._names = [_split(part.removeprefix(DNS)) for part in parts if part.startswith(DNS)]

    @property
    def fixed(self) -> list[Address] | None:
        """The servers, if no name has to be looked up."""
        return None if self._names else self._fixed

    def look_up(self) -> list[Address]:
        """The servers now; this may take seconds.

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
            found += [Address(f"[{each}]:{port}" if ":" in each else f"{each}:{port}", host) for each in hosts]
        return found


def _split(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidArgument(f"`url` {quoted(DNS + text)} has no port; give {DNS}name:port")
    return host, int(port)
