"""The servers of a client: which of them gets a call, and which call another one takes over."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any, NamedTuple

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from .. import responses
from ..backends import Backend, Job, Once, is_cancelled
from ..callers import add_caller, is_batch
from ..errors import Cancelled, ConnectionFailed, VoiceCloneError
from . import affinity, retry
from . import channel as channels
from .addresses import REFRESH_SECONDS, Address, Addresses
from .affinity import Metadata
from .chooser import Chooser
from .proxies import Way

ASK_SECONDS = 2.0  # for a server's answer whether it is ready


class Connection(NamedTuple):
    """A channel, Triton's calls on it, and the call of models that answer with a stream."""

    channel: Any
    stub: Any
    stream: Any


class Servers:
    """One server, or several that have the same voices. Thread-safe; with `EVENT_LOOP` for one event loop.

    Args:
        backend: how to wait for them.
        url: see `Addresses`.
        credentials: of TLS.
        metadata: sent with every call.
        proxy: see `Way`.

    Raises:
        InvalidArgument: the url or the proxy is wrong.
    """

    def __init__(
        self,
        backend: Backend,
        url: str,
        credentials: grpc.ChannelCredentials | None,
        metadata: Metadata,
        proxy: str | None,
    ) -> None:
        self.backend = backend
        self._addresses = Addresses(url)
        self._credentials = credentials
        self._metadata = metadata
        self._way = Way(proxy)
        self._chooser = Chooser()
        self._connections: dict[tuple[Address, bool], Connection] = {}  # by whether it is for batch work
        self._lock = threading.Lock()
        self._look_up = Once(backend, self._find)
        self._stale_at = float("-inf")
        self._asking: set[Job[None]] = set()
        self._closed = False
        if self._addresses.fixed is not None:
            self._chooser.update(self._addresses.fixed)

    async def infer(self, request: Any, timeout: float | None, stream_id: str | None = None) -> Any:
        """Ask a model that gives one answer. At most two servers are asked.

        Args:
            stream_id: of a bundle that comes in parts.

        Raises:
            VoiceCloneError: the last one's.
        """
        add_caller(request)
        key, changes = stream_id or affinity.of_request(request), retry.changes(request)
        metadata = (*self._metadata, *affinity.headers(key, stream_id))
        until = None if timeout is None else time.monotonic() + timeout
        with self._until_closed():
            first = await self.choose(key)
            assert first is not None
            try:
                return await self._infer(first, request, timeout, metadata)
            except VoiceCloneError as error:
                other = await self.choose(key, (first,)) if retry.may_repeat(error, changes) else None
                if other is None:
                    raise
            return await self._infer(other, request, None if until is None else until - time.monotonic(), metadata)

    def stream(
        self,
        request: Any,
        family: Callable[[], Awaitable[str]],
        timeout: float | None,
        stream_id: str | None = None,
        *,
        repeatable: bool = True,
        headers: Metadata = (),
    ) -> Call:
        """Begin a call of a model that answers with a stream. With `EVENT_LOOP` it needs a running event loop.

        Args:
            family: answers the model, in part of the time.
            stream_id: of a speech whose text is appended.
            repeatable: whether it may begin again at another server, as long as no chunk came.
            headers: of this call alone.
        """
        add_caller(request)
        return Call(self, request, family, timeout, (*self._metadata, *headers), stream_id, repeatable)

    async def ready(self, model: str, timeout: float | None) -> bool:
        """Whether a model is ready at one of the servers."""
        request = service_pb2.ModelReadyRequest(name=model)
        with self._until_closed():
            for address in await self._known():
                with contextlib.suppress(grpc.RpcError, ConnectionFailed):
                    method = self.connection(address).stub.ModelReady
                    if (await self.backend.answer(method, request, timeout, self._metadata)).ready:
                        return True
        return False

    async def choose(self, key: str | None, tried: Collection[Address] = ()) -> Address | None:
        """Choose a server, see `Chooser.choose`, and ask those that were down whether they are back.

        Raises:
            ConnectionFailed: the name of the servers has no address.
        """
        await self._known()
        for address in self._chooser.due():
            job = self.backend.start(self._ask(address))
            self._asking.add(job)
            job.add_done_callback(self._asking.discard)
        return self._chooser.choose(key, tried)

    def connection(self, address: Address, batch: bool = False) -> Connection:
        """Return the connection to a server, or the one for batch work. The first call makes it.

        Raises:
            Cancelled: the client is closed.
        """
        with self._lock:
            if self._closed:
                raise Cancelled("the client is closed")
            key = address, batch
            if key not in self._connections:
                channel = channels.connect(self.backend.grpc, address, self._credentials, self._way, batch)
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                self._connections[key] = Connection(channel, stub, channels.stream_of(channel))
            return self._connections[key]

    def record(self, address: Address, error: VoiceCloneError | None) -> None:
        """Note the error with which a call to a server ended; None: it had none."""
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

    async def close(self) -> None:
        """Close all connections, which cancels the calls that run."""
        with self._lock:
            self._closed = True
            connections = list(self._connections.values())
        for job in tuple(self._asking):
            job.cancel()
        self._look_up.cancel()
        for connection in connections:
            await self.backend.close(connection.channel)

    @contextlib.contextmanager
    def _until_closed(self) -> Iterator[None]:
        """Raises Cancelled if `close` ends the calls in the block, for which gRPC raises CancelledError in a task."""
        try:
            yield
        except asyncio.CancelledError:
            if not self._closed or is_cancelled():
                raise
            raise Cancelled("the client was closed") from None

    async def _infer(self, address: Address, request: Any, timeout: float | None, metadata: Metadata) -> Any:
        try:
            method = self.connection(address).stub.ModelInfer
            answer = await self.backend.answer(method, request, timeout, metadata)
        except grpc.RpcError as failure:
            error = self.error_of(failure)
        except ConnectionFailed as cancelled:
            error = cancelled
        else:
            self.record(address, None)
            return answer
        finally:
            self.ended(address)
        self.record(address, error)
        raise error

    async def _ask(self, address: Address) -> None:
        """Ask a server whether it is ready."""
        ready = False
        with contextlib.suppress(grpc.RpcError, VoiceCloneError):
            method = self.connection(address).stub.ServerReady
            request = service_pb2.ServerReadyRequest()
            ready = (await self.backend.answer(method, request, ASK_SECONDS, self._metadata)).ready
        (self._chooser.answered if ready else self._chooser.failed)(address)

    async def _known(self) -> list[Address]:
        """Return the servers. The first look-up of a name is waited for; later ones run in the background."""
        known = self._chooser.addresses
        if self._addresses.fixed is None and (not known or time.monotonic() >= self._stale_at):
            job = self._look_up.begin()
            if not known:
                await self.backend.wait(job)
                job.result()
        return self._chooser.addresses

    async def _find(self) -> None:
        try:
            self._chooser.update(await self.backend.run(self._addresses.look_up))
        finally:
            self._stale_at = time.monotonic() + REFRESH_SECONDS
        with self._lock:
            keys = [(address, batch) for address in self._chooser.take_gone() for batch in (False, True)]
            gone = [self._connections.pop(key) for key in keys if key in self._connections]
        for connection in gone:
            await self.backend.close(connection.channel)


class Call:
    """The messages of a stream. If a server fails before the first chunk, another one takes over."""

    def __init__(
        self,
        servers: Servers,
        request: Any,
        family: Callable[[], Awaitable[str]],
        timeout: float | None,
        metadata: Metadata,
        stream_id: str | None,
        repeatable: bool,
    ) -> None:
        self.backend = servers.backend
        self._servers = servers
        self._request = request
        self._until = None if timeout is None else time.monotonic() + timeout
        self._key = affinity.of_request(request)
        self._metadata = (*metadata, *affinity.headers(self._key, stream_id))
        self._repeatable = repeatable
        self._cancelled = False
        self._lock = threading.Lock()
        self._address: Address | None = None
        self._call: Any = None
        self._begun = self.backend.begin(self._begin_first(family))

    async def next(self) -> Any:
        """The next message.

        Raises:
            StopAsyncIteration: there is none.
            grpc.RpcError: see `error_of`.
            VoiceCloneError: the server has cancelled the stream, or it could not begin.
        """
        await self.backend.result(self._begun)
        assert self._address is not None
        while True:
            try:
                message = await self.backend.next(self._call)
            except (grpc.RpcError, ConnectionFailed) as failure:
                if self._cancelled:  # by this process, which says nothing of the server
                    raise
                error = failure if isinstance(failure, ConnectionFailed) else self.error_of(failure)
                self._servers.record(self._address, error)
                if not (retry.may_repeat(error) and await self._begin_again()):
                    raise
                continue
            if retry.error_in(message) and self._repeatable:
                await self.let_end()
                if await self._begin_again():
                    continue
            elif not message.error_message:
                self._servers.record(self._address, None)
                self._repeatable = self._repeatable and not message.infer_response.outputs
            return message

    def error_of(self, failure: grpc.RpcError) -> VoiceCloneError:
        """Return the error of a failure of this call, or of one beside it."""
        return self._servers.error_of(failure)

    async def let_end(self) -> None:
        """See `Backend.let_end`."""
        if self._call is not None:
            await self.backend.let_end(self._call)

    def cancel(self) -> None:
        """Cancel the stream, or the task that begins it; from any thread."""
        with self._lock:
            self._cancelled = True
            self._begun.cancel()
            if self._call is not None:
                self._call.cancel()

    async def beside(self, request: Any, timeout: float | None) -> list[Any]:
        """The messages of another stream at the same server."""
        await self.backend.wait(self._begun)
        self._begun.result()
        assert self._address is not None
        call = self._servers.connection(self._address).stream(request, timeout=timeout, metadata=self._metadata)
        messages: list[Any] = []
        try:
            while True:
                messages.append(await self.backend.next(call))
        except StopAsyncIteration:
            return messages
        finally:
            call.cancel()

    async def _begin_first(self, family: Callable[[], Awaitable[str]]) -> None:
        self._request.model_name = await family()
        address = await self._servers.choose(self._key)
        assert address is not None
        self._begin(address)

    async def _begin_again(self) -> bool:
        """Begin at another server. Returns whether that was possible."""
        if not self._repeatable:
            return False
        self._repeatable = False
        assert self._address is not None
        other = await self._servers.choose(self._key, (self._address,))
        if other is None:
            return False
        with self._lock:
            if self._cancelled:
                self._servers.ended(other)
                return False
            self._begin(other)
        return True

    def _begin(self, address: Address) -> None:
        left = None if self._until is None else self._until - time.monotonic()
        self._address = address
        try:
            stream = self._servers.connection(address, is_batch(self._request)).stream
            self._call = stream(self._request, timeout=left, metadata=self._metadata)
        except BaseException:
            self._servers.ended(address)
            raise
        self.backend.at_end(self._call, lambda: self._servers.ended(address))
