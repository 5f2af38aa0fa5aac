"""The connections to the servers and what is known of these, for both clients."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import grpc
from tritonclient.grpc import service_pb2_grpc

from .. import responses
from ..errors import Cancelled, ConnectionFailed, VoiceCloneError
from . import channel as channels
from .addresses import Address, Addresses
from .affinity import Metadata
from .chooser import Chooser
from .proxies import Way

ASK_SECONDS = 2.0  # for a server's answer whether it is ready


class Connection(NamedTuple):
    """A channel, Triton's calls on it, and the call of models that answer with a stream."""

    channel: Any
    stub: Any
    stream: Any


class Pool:
    """One server, or several that have the same voices. Thread-safe.

    Args:
        module: grpc or grpc.aio.
        url: see `Addresses`.
        credentials: of TLS.
        metadata: sent with every call.
        proxy: see `Way`.

    Raises:
        InvalidArgument: the url or the proxy is wrong.
    """

    def __init__(
        self,
        module: Any,
        url: str,
        credentials: grpc.ChannelCredentials | None,
        metadata: Metadata,
        proxy: str | None,
    ) -> None:
        self._module = module
        self._addresses = Addresses(url)
        self._credentials = credentials
        self._metadata = metadata
        self._way = Way(proxy)
        self._chooser = Chooser()
        self._connections: dict[Address, Connection] = {}
        self._lock = threading.Lock()
        self._stale_at = float("-inf")
        self._closed = False
        if self._addresses.fixed is not None:
            self._chooser.update(self._addresses.fixed)

    def connection(self, address: Address) -> Connection:
        """Return the connection to a server. The first call makes it.

        Raises:
            Cancelled: the client is closed.
        """
        with self._lock:
            if self._closed:
                raise Cancelled("the client is closed")
            if address not in self._connections:
                channel = channels.connect(self._module, address, self._credentials, self._way)
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                self._connections[address] = Connection(channel, stub, channels.stream_of(channel))
            return self._connections[address]

    def record(self, address: Address, error: VoiceCloneError | None) -> None:
        """Note with which error a call to a server ended; None if without one."""
        if error is None:
            self._chooser.answered(address)
        elif isinstance(error, ConnectionFailed):
            self._chooser.failed(address)
            self._stale_at = float("-inf")

    def error_of(self, failure: Any) -> VoiceCloneError:
        """Return the error of a `grpc.RpcError`."""
        return self._way.named_in(responses.rpc_error(failure))

    def ended(self, address: Address) -> None:
        """Note that a call to a server is over."""
        self._chooser.ended(address)

    def take_gone(self) -> list[Connection]:
        """Take out the connections to servers that are gone and have no calls. The caller closes them."""
        with self._lock:
            return [self._connections.pop(each) for each in self._chooser.take_gone() if each in self._connections]

    def take_all(self) -> list[Connection]:
        """Take out all connections, and make no more. The caller closes them."""
        with self._lock:
            self._closed = True
            return list(self._connections.values())
