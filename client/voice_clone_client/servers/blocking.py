"""The servers of the synchronous client: connections, and calls that another server may take over."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from ..callers import add_caller
from ..errors import VoiceCloneError
from . import affinity, retry
from .addresses import REFRESH_SECONDS, Address
from .affinity import Metadata
from .channel import let_end
from .pool import ASK_SECONDS, Pool


class Servers(Pool):
    """The servers of the synchronous client. The arguments are those of `Pool`, without the first."""

    def __init__(
        self, url: str, credentials: grpc.ChannelCredentials | None, metadata: Metadata, proxy: str | None
    ) -> None:
        super().__init__(grpc, url, credentials, metadata, proxy)
        self._looking_up = threading.Lock()
        for address in self._addresses.fixed or ():
            self.connection(address)

    def infer(self, request: Any, timeout: float | None, stream_id: str | None = None) -> Any:
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
        first = self.choose(key)
        assert first is not None
        try:
            return self._infer(first, request, timeout, metadata)
        except VoiceCloneError as error:
            other = self.choose(key, (first,)) if retry.may_repeat(error, changes) else None
            if other is None:
                raise
        return self._infer(other, request, None if until is None else until - time.monotonic(), metadata)

    def stream(
        self,
        request: Any,
        timeout: float | None,
        stream_id: str | None = None,
        *,
        repeatable: bool = True,
        headers: Metadata = (),
    ) -> Call:
        """Begin a call of a model that answers with a stream.

        Args:
            stream_id: of a speech whose text is appended.
            repeatable: whether it may begin again at another server, as long as no chunk came.
            headers: of this call alone.
        """
        add_caller(request)
        return Call(self, request, timeout, (*self._metadata, *headers), stream_id, repeatable)

    def ready(self, model: str, timeout: float | None) -> bool:
        """Whether a model is ready at one of the servers."""
        request = service_pb2.ModelReadyRequest(name=model)
        for address in self._known():
            with contextlib.suppress(grpc.RpcError):
                answer = self.connection(address).stub.ModelReady(request, timeout=timeout, metadata=self._metadata)
                if answer.ready:
                    return True
        return False

    def choose(self, key: str | None, tried: Collection[Address] = ()) -> Address | None:
        """Choose a server, see `Chooser.choose`, and ask those that were down whether they are back.

        Raises:
            ConnectionFailed: the name of the servers has no address.
        """
        self._known()
        for address in self._chooser.due():
            self._ask(address)
        return self._chooser.choose(key, tried)

    def close(self) -> None:
        """Close all connections, which cancels the calls that run."""
        for connection in self.take_all():
            connection.channel.close()

    def _infer(self, address: Address, request: Any, timeout: float | None, metadata: Metadata) -> Any:
        try:
            answer = self.connection(address).stub.ModelInfer(request, timeout=timeout, metadata=metadata)
        except grpc.RpcError as failure:
            error = self.error_of(failure)
            self.record(address, error)
            raise error from None
        else:
            self.record(address, None)
            return answer
        finally:
            self.ended(address)

    def _ask(self, address: Address) -> None:
        """Ask a server whether it is ready, without waiting for the answer."""
        future = self.connection(address).stub.ServerReady.future(
            service_pb2.ServerReadyRequest(), timeout=ASK_SECONDS, metadata=self._metadata
        )

        def answered(future: Any) -> None:
            try:
                ready = future.result().ready
            except (grpc.RpcError, grpc.FutureCancelledError):
                ready = False
            (self._chooser.answered if ready else self._chooser.failed)(address)

        future.add_done_callback(answered)

    def _known(self) -> list[Address]:
        """Return the servers. The first look-up of a name is waited for; later ones run in the background."""
        known = self._chooser.addresses
        if self._addresses.fixed is None and (not known or time.monotonic() >= self._stale_at):
            if not known:
                with self._looking_up:
                    if not self._chooser.addresses:
                        self._look_up()
            elif self._looking_up.acquire(blocking=False):
                threading.Thread(target=self._look_up_again, daemon=True).start()
        return self._chooser.addresses

    def _look_up_again(self) -> None:
        try:
            with contextlib.suppress(VoiceCloneError):  # the known ones may still work
                self._look_up()
        finally:
            self._looking_up.release()

    def _look_up(self) -> None:
        try:
            found = self._addresses.look_up()
            self._chooser.update(found)
        finally:
            self._stale_at = time.monotonic() + REFRESH_SECONDS
        for connection in self.take_gone():
            connection.channel.close()


class Call(Iterator[Any]):
    """The messages of a stream. If a server fails before the first chunk, another one takes over."""

    def __init__(
        self,
        servers: Servers,
        request: Any,
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
        self._lock = threading.Lock()
        address = servers.choose(self._key)
        assert address is not None
        self._begin(address)

    def __next__(self) -> Any:
        while True:
            try:
                message = next(self._call)
            except grpc.RpcError as failure:
                if self._cancelled:  # by this process, which says nothing of the server
                    raise
                error = self.error_of(failure)
                self._servers.record(self._address, error)
                if not (retry.may_repeat(error) and self._begin_again()):
                    raise
                continue
            if retry.error_in(message) and self._repeatable:
                let_end(self._call)
                if self._begin_again():
                    continue
            elif not message.error_message:
                self._servers.record(self._address, None)
                self._repeatable = self._repeatable and not message.infer_response.outputs
            return message

    def error_of(self, failure: grpc.RpcError) -> VoiceCloneError:
        """Return the error of a failure of this call, or of one beside it."""
        return self._servers.error_of(failure)

    def cancel(self) -> None:
        """Cancel the stream, from any thread."""
        with self._lock:
            self._cancelled = True
            self._call.cancel()

    def beside(self, request: Any, timeout: float | None) -> Any:
        """Begin another stream at the same server."""
        return self._servers.connection(self._address).stream(request, timeout=timeout, metadata=self._metadata)

    def _begin_again(self) -> bool:
        """Begin at another server. Returns whether that was possible."""
        if not self._repeatable:
            return False
        self._repeatable = False
        other = self._servers.choose(self._key, (self._address,))
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
            stream = self._servers.connection(address).stream
            self._call = stream(self._request, timeout=left, metadata=self._metadata)
        except BaseException:
            self._servers.ended(address)
            raise
        if not self._call.add_callback(lambda: self._servers.ended(address)):
            self._servers.ended(address)  # it is over already
