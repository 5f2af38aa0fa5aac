"""The servers of the client for asyncio: connections, and calls that another server may take over; see `blocking`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from ..callers import add_caller
from ..errors import Cancelled, ConnectionFailed, VoiceCloneError
from . import affinity, retry
from .addresses import REFRESH_SECONDS, Address
from .affinity import Metadata
from .async_calls import answer_of, is_cancelled, let_end, quiet_task
from .pool import ASK_SECONDS, Pool


class AsyncServers(Pool):
    """The servers for one event loop, to which the channels belong. The methods are those of `blocking.Servers`."""

    def __init__(
        self, url: str, credentials: grpc.ChannelCredentials | None, metadata: Metadata, proxy: str | None
    ) -> None:
        super().__init__(grpc.aio, url, credentials, metadata, proxy)
        self._look_up: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[None]] = set()

    async def infer(self, request: Any, timeout: float | None, stream_id: str | None = None) -> Any:
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
    ) -> AsyncCall:
        """Begin a stream; `family` answers the model, in part of the time. It needs a running event loop."""
        add_caller(request)
        return AsyncCall(self, request, family, timeout, (*self._metadata, *headers), stream_id, repeatable)

    async def ready(self, model: str, timeout: float | None) -> bool:
        request = service_pb2.ModelReadyRequest(name=model)
        with self._until_closed():
            for address in await self._known():
                with contextlib.suppress(grpc.RpcError):
                    stub = self.connection(address).stub
                    if (await stub.ModelReady(request, timeout=timeout, metadata=self._metadata)).ready:
                        return True
        return False

    async def choose(self, key: str | None, tried: Collection[Address] = ()) -> Address | None:
        await self._known()
        for address in self._chooser.due():
            task = asyncio.create_task(self._ask(address))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        return self._chooser.choose(key, tried)

    async def close(self) -> None:
        """Close all connections."""
        for task in (*self._asking, *([self._look_up] if self._look_up else [])):
            task.cancel()
        for connection in self.take_all():
            await connection.channel.close()

    @contextlib.contextmanager
    def _until_closed(self) -> Iterator[None]:
        """Raises Cancelled if `close` ends the calls in the block, for which gRPC raises CancelledError."""
        try:
            yield
        except asyncio.CancelledError:
            if not self._closed or is_cancelled():
                raise
            raise Cancelled("the client was closed") from None

    async def _infer(self, address: Address, request: Any, timeout: float | None, metadata: Metadata) -> Any:
        try:
            call = self.connection(address).stub.ModelInfer(request, timeout=timeout, metadata=metadata)
            answer = await answer_of(call, call)
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
        with contextlib.suppress(grpc.RpcError):
            request, stub = service_pb2.ServerReadyRequest(), self.connection(address).stub
            ready = (await stub.ServerReady(request, timeout=ASK_SECONDS, metadata=self._metadata)).ready
        (self._chooser.answered if ready else self._chooser.failed)(address)

    async def _known(self) -> list[Address]:
        known = self._chooser.addresses
        if self._addresses.fixed is None and (not known or time.monotonic() >= self._stale_at):
            if self._look_up is None or self._look_up.done():
                self._look_up = quiet_task(self._find())
            if not known:
                task = self._look_up  # shared: the cancellation of one call must not cancel it
                await asyncio.wait((task,))
                task.result()
        return self._chooser.addresses

    async def _find(self) -> None:
        try:
            self._chooser.update(await asyncio.get_running_loop().run_in_executor(None, self._addresses.look_up))
        finally:
            self._stale_at = time.monotonic() + REFRESH_SECONDS
        for connection in self.take_gone():
            await connection.channel.close()


class AsyncCall:
    """The messages of a stream, which begins in a task. The methods are those of `blocking.Call`; iterate it once."""

    def __init__(
        self,
        servers: AsyncServers,
        request: Any,
        family: Callable[[], Awaitable[str]],
        timeout: float | None,
        metadata: Metadata,
        stream_id: str | None,
        repeatable: bool,
    ) -> None:
        self._servers = servers
        self._request = request
        self._until = None if timeout is None else time.monotonic() + timeout
        self._key = affinity.of_request(request)
        self._metadata = (*metadata, *affinity.headers(self._key, stream_id))
        self._repeatable = repeatable
        self._cancelled = False
        self._address: Address | None = None
        self._call: Any = None
        self._begun = quiet_task(self._begin_first(family))

    async def __aiter__(self) -> AsyncIterator[Any]:
        await self._begun
        while True:
            messages = aiter(self._call)
            try:
                while True:
                    message = await answer_of(self._call, anext(messages))
                    if retry.error_in(message) and self._repeatable:
                        await let_end(self._call, messages)
                        if await self._begin_again():
                            break
                    elif not message.error_message:
                        self._record(None)
                        self._repeatable = self._repeatable and not message.infer_response.outputs
                    yield message
            except StopAsyncIteration:
                return
            except (grpc.RpcError, ConnectionFailed) as failure:
                error = failure if isinstance(failure, ConnectionFailed) else self.error_of(failure)
                self._record(error)
                if not (retry.may_repeat(error) and await self._begin_again()):
                    raise

    def error_of(self, failure: grpc.RpcError) -> VoiceCloneError:
        return self._servers.error_of(failure)

    def cancel(self) -> None:
        """Cancel the stream, or the task that begins it."""
        self._cancelled = True
        self._begun.cancel()
        if self._call is not None:
            self._call.cancel()

    async def beside(self, request: Any, timeout: float | None) -> AsyncIterator[Any]:
        """Iterate the messages of another stream at the same server."""
        await asyncio.wait((self._begun,))
        self._begun.result()
        assert self._address is not None
        stream = self._servers.connection(self._address).stream
        call = stream(request, timeout=timeout, metadata=self._metadata)
        try:
            async for message in call:
                yield message
        finally:
            call.cancel()

    def _record(self, error: VoiceCloneError | None) -> None:
        assert self._address is not None
        self._servers.record(self._address, error)

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
        if self._cancelled:
            self._servers.ended(other)
            return False
        self._begin(other)
        return True

    def _begin(self, address: Address) -> None:
        left = None if self._until is None else self._until - time.monotonic()
        self._address = address
        try:
            stream = self._servers.connection(address).stream
            self._call = stream(self._request, timeout=left, metadata=self._metadata)
        except BaseException:
            self._servers.ended(address)
            raise
        self._call.add_done_callback(lambda call: self._servers.ended(address))
