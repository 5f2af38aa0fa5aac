"""How both clients reach the server."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import InvalidArgument

OPTIONS = (
    ("grpc.max_send_message_length", -1),  # the server bounds uploads
    ("grpc.max_receive_message_length", -1),  # an export of all voices is large
)
_STREAM_ERRORS = ("triton_grpc_error", "true")  # without it Triton sends stream errors without a status code


def target(url: str) -> str:
    """`url`, checked.

    Raises:
        InvalidArgument: it has a scheme.
    """
    if "://" in url:
        raise InvalidArgument(f"url {url!r} has a scheme; give host:port of the server's gRPC endpoint")
    return url


def metadata(headers: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Headers of every call."""
    return (_STREAM_ERRORS, *((key.lower(), value) for key, value in (headers or {}).items()))
