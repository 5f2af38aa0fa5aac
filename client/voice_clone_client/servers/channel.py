"""The connection to the server, for both clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from ..errors import InvalidArgument
from ..sources import Source, content, name
from .addresses import Address
from .proxies import Way

OPTIONS = (
    ("grpc.max_send_message_length", -1),  # the server bounds uploads
    ("grpc.max_receive_message_length", -1),  # an export of all voices is large
    # A server that comes back is found within a second; gRPC would wait for up to two minutes, and would ask for the
    # address of its name once in 30 s: a container that starts again may have another.
    ("grpc.initial_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
)
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def connect(
    module: Any, address: Address, credentials: grpc.ChannelCredentials | None, way: Way, batch: bool = False
) -> Any:
    """Open a channel of `module`: grpc or grpc.aio.

    Args:
        batch: it is for work for which no listener waits: it has a connection of its own, for on a shared one a
            listener's first chunk waits behind what such work gets.
    """
    # Channels of equal options share a connection.
    options = (*OPTIONS, *way.options, *((("grpc.use_local_subchannel_pool", 1),) if batch else ()))
    if credentials is None:
        return module.insecure_channel(address.target, options)
    named = () if address.name is None else (("grpc.ssl_target_name_override", address.name),)
    return module.secure_channel(address.target, credentials, (*options, *named))


def stream_of(channel: Any) -> Any:
    """Return Triton's call for decoupled models, with one request instead of an iterator of requests.

    grpc starts a thread for an iterator, and sends its requests after the headers; the bytes on the wire are the same.
    This side of the stream is closed with the request: one that stays open keeps its model loaded (fault: open-stream).

    Args:
        channel: a `grpc.Channel` or a `grpc.aio.Channel`.
    """
    return channel.unary_stream(
        STREAM,
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )


def tls_credentials(ca: Source | None = None) -> grpc.ChannelCredentials:
    """Make the credentials of a TLS connection.

    Args:
        ca: PEM file of the authority that signed the server's certificate; None takes the authorities of gRPC.

    Raises:
        InvalidArgument: the file holds no certificate.
        OSError: it cannot be read.
    """
    if ca is None:
        return grpc.ssl_channel_credentials()
    pem = content(ca)
    if b"-----BEGIN CERTIFICATE-----" not in pem:
        raise InvalidArgument(f"{name(ca)} holds no certificate; give a PEM file with -----BEGIN CERTIFICATE-----")
    return grpc.ssl_channel_credentials(pem)


def metadata(headers: Mapping[str, str] | None, token: str | None) -> tuple[tuple[str, str], ...]:
    """Return the headers of every call, including the token.

    The header `triton_grpc_error` is never sent (fault: grpc-error-header): it adds status codes to the errors of a
    stream, but before 26.04 such an error can crash Triton. The slug of an error determines its class without it.

    Raises:
        InvalidArgument: a header cannot carry the token.
    """
    sent = tuple((key.lower(), value) for key, value in (headers or {}).items())
    if not token:
        return sent
    if not all("!" <= character <= "~" for character in token):
        raise InvalidArgument("the `token` must be printable ASCII without spaces or line ends")
    return (*sent, ("x-voice-token", token))


def timeout(usual: float | None, more: float | None) -> float | None:
    """Return how many seconds a call may take: the usual ones, and those that the caller lets the server wait."""
    return usual if usual is None or more is None else usual + max(more, 0.0)


def shorter(usual: float | None, limit: float | None) -> float | None:
    """Return the smaller of two limits in seconds, at least 0. None is no limit."""
    limits = [seconds for seconds in (usual, limit) if seconds is not None]
    return max(0.0, min(limits)) if limits else None
