"""The sockets at which the gateway listens. Whoever starts it may make them, and keep them for the next one."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl

with contextlib.suppress(ImportError):  # Windows
    import resource

FILES = 16384
"""More open files than these are not asked for."""


def bound(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at all addresses of a host. Two that do not listen yet may be bound to one address.

    Raises:
        OSError: there is none, or one of them cannot be had; the text says where and why.
    """
    sockets: list[socket.socket] = []
    try:
        if port > 65535:  # getaddrinfo takes it modulo 65536
            raise OSError(f"{port} is no port; they end at 65535")
        for family, kind, protocol, _, address in dict.fromkeys(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        ):
            sockets.append(socket.socket(family, kind, protocol))
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sockets[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as asyncio does
            sockets[-1].bind(address)
            sockets[-1].listen()
    except (OSError, UnicodeError) as error:
        for each in sockets:
            each.close()
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise OSError(f"cannot listen at {named(host, port)}: {reason}") from None
    return sockets


def check_certificate(certificate: str, key: str) -> None:
    """Check the files of a certificate and its key; "" for none.

    Raises:
        ValueError: they cannot be read, or do not belong together.
    """
    if key and not certificate:
        raise ValueError("--tls-key is given without --tls-certificate")
    if not certificate:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key or None, password="")
    except FileNotFoundError:
        missing = certificate if not os.path.exists(certificate) else key
        raise ValueError(f"{missing}: there is no such file") from None
    except (OSError, ValueError):
        files = f"{certificate} and {key}" if key else certificate
        raise ValueError(f"{files}: no certificate with its private key in PEM, without a password") from None


def named(host: str, port: int) -> str:
    """`host:port`, with brackets around an address of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def most_files() -> int:
    """How many files and connections this process may have open. Raises the limit, which often is 1024."""
    try:
        limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    except NameError:
        return FILES
    wanted = FILES if most == resource.RLIM_INFINITY else min(most, FILES)
    if resource.RLIM_INFINITY != limit < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return wanted
