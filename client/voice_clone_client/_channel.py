"""How both clients reach the server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from .errors import InvalidArgument

OPTIONS = (
    ("grpc.max_send_message_length", -1),  # the server bounds uploads
    ("grpc.max_receive_message_length", -1),  # an export of all voices is large
)


STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"

END_SECONDS = 2.0  # in which a server ends a stream of which it has answered an error


def target(url: str) -> str:
    """`url`, checked.

    Raises:
        InvalidArgument: it has a scheme.
    """
    if "://" in url:
        raise InvalidArgument(f"url {url!r} has a scheme; give host:port of the server's gRPC endpoint")
    return url


def stream_of(channel: Any) -> Any:
    """Triton's call for decoupled models, made with its one request instead of an iterator of requests.

    For an iterator grpc starts a thread, and sends what it gives after the call's headers; on the wire it is the same.

    Args:
        channel: a `grpc.Channel` or a `grpc.aio.Channel`.
    """
    return channel.unary_stream(
        STREAM,
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )


def tls_credentials(ca: str | None = None) -> grpc.ChannelCredentials:
    """Of a connection by TLS.

    Args:
        ca: PEM file of the authority that signed the server's certificate; None for those that gRPC trusts.

    Raises:
        InvalidArgument: the file holds no certificate.
        OSError: it cannot be read.
    """
    if ca is None:
        return grpc.ssl_channel_credentials()
    pem = Path(ca).read_bytes()
    if b"-----BEGIN CERTIFICATE-----" not in pem:
        raise InvalidArgument(f"{ca} holds no certificate; give a PEM file with -----BEGIN CERTIFICATE-----")
    return grpc.ssl_channel_credentials(pem)


def metadata(headers: Mapping[str, str] | None, token: str | None) -> tuple[tuple[str, str], ...]:
    """Headers of every call, the token among them.

    `triton_grpc_error` is none of them: it brings status codes to the errors of a stream, but an error sent with it
    takes a Triton 2.51 down now and then. The class of an error is in its slug anyway.

    Raises:
        InvalidArgument: no header can carry the token.
    """
    sent = tuple((key.lower(), value) for key, value in (headers or {}).items())
    if not token:
        return sent
    if not all("!" <= character <= "~" for character in token):
        raise InvalidArgument("the token must be printable ASCII without spaces or line ends")
    return (*sent, ("x-voice-token", token))


def timeout(usual: float | None, more: float | None) -> float | None:
    """Seconds that a call may take: as usual, and longer by what the server was asked to wait."""
    return usual if usual is None or more is None else usual + max(more, 0.0)
