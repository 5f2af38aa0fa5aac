"""How both clients reach the server."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import InvalidArgument

OPTIONS = (
    ("grpc.max_send_message_length", -1),  # the server bounds uploads
    ("grpc.max_receive_message_length", -1),  # an export of all voices is large
)


END_SECONDS = 2.0  # in which a server ends a stream of which it has answered an error


def target(url: str) -> str:
    """`url`, checked.

    Raises:
        InvalidArgument: it has a scheme.
    """
    if "://" in url:
        raise InvalidArgument(f"url {url!r} has a scheme; give host:port of the server's gRPC endpoint")
    return url


def metadata(headers: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Headers of every call.

    `triton_grpc_error` is none of them: it brings status codes to the errors of a stream, but an error sent with it
    takes a Triton 2.51 down now and then. The class of an error is in its slug anyway.
    """
    return tuple((key.lower(), value) for key, value in (headers or {}).items())


def timeout(usual: float | None, more: float | None) -> float | None:
    """Seconds that a call may take: as usual, and longer by what the server was asked to wait."""
    return usual if usual is None or more is None else usual + max(more, 0.0)
