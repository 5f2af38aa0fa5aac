"""Where a server of this machine may listen, and how a tool of the same machine reaches it."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket


class WrongHost(ValueError):
    """A host on which this machine cannot listen; the text says why."""


def numbers_of(host: str) -> str:
    """The address of a host, which may be a name: `::1` of `[::1]`, `127.0.0.1` of `localhost`.

    Raises:
        WrongHost: it has none.
    """
    bare = host.removeprefix("[").removesuffix("]")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        pass
    try:
        entries = socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise WrongHost(f"{host!r} is no address and no name of one; 127.0.0.1 is for this machine alone") from None
    return str(min(entries, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def check_free(host: str, port: int) -> None:
    """Check that a server may listen at an address with a port.

    Raises:
        WrongHost: the address is no address of this machine.
        OSError: the port is none, in use, or not allowed.
    """
    address = numbers_of(host)
    if not 0 < port < 65536:
        raise OSError(f"{port} is no port; one is 1 to 65535")
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise OSError(f"port {port} is in use") from None
            if error.errno == errno.EACCES:
                raise OSError(f"port {port} is for root alone; ports above 1023 are for all") from None
            raise WrongHost(
                f"this machine has no address {host}; 127.0.0.1 is for this machine alone, 0.0.0.0 is for all"
            ) from None


def local(host: str) -> str:
    """The address at which this machine reaches a server that listens on `host`."""
    address = numbers_of(host)
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)


def at(host: str, port: int) -> str:
    """`host:port`, with brackets around an address of IPv6."""
    bare = host.removeprefix("[").removesuffix("]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def status_of(host: str, port: int, path: str, timeout: float, tls: bool = False) -> int:
    """The status with which a server of this machine answers a GET of HTTP.

    A socket does without the HTTP client of Python's library, whose import takes longer than the rest of this package.
    The certificate is not checked: the tools have started the server themselves, at its own socket.

    Raises:
        OSError: there is no answer.
    """
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, port), timeout))
        if tls:
            import ssl

            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = stack.enter_context(context.wrap_socket(connection))
        request = f"GET {path} HTTP/1.1\r\nHost: {at(host, port)}\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode("ascii"))
        answer = stack.enter_context(connection.makefile("rb"))
        found = re.match(rb"HTTP/1\.[01] (\d{3})\b", answer.readline(200))
        while answer.read(1 << 16):  # else the server would find the connection broken
            pass
    if found is None:
        raise OSError(errno.EPROTO, "the answer is none of HTTP")
    return int(found[1])


def fetch(url: str, timeout: float) -> bytes:
    """A page of a server of this machine, without the proxies that the environment names.

    Raises:
        OSError: there is none, or it is an error.
    """
    from http.client import HTTPException  # for which, and for the next, a start does not wait
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(url, timeout=timeout) as answer:
            return bytes(answer.read())
    except HTTPException as error:  # such as half an answer of a server that was killed
        raise OSError(errno.EPROTO, "the answer is none of HTTP, or breaks off") from error
