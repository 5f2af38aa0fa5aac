"""The client for asyncio: the methods of `client.Client` as coroutines. The docstrings there are the full ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from weakref import WeakSet

import grpc
import grpc.aio
import numpy as np
from numpy.typing import ArrayLike, NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc

from . import _channel, _requests, _responses
from ._requests import Source
from .client import Names, Voices
from .errors import BrokenStream, Cancelled, DeadlineExceeded, Unsupported, VoiceCloneError
from .types import Chunk, Knobs, Voice

if TYPE_CHECKING:
    from typing_extensions import Unpack


T = TypeVar("T")


class AsyncSpeech(AsyncIterator[Chunk]):
    """A speech while the server makes it: an asynchronous iterator of its chunks; see `Speech`.

    Cancelling the task that waits for a chunk stops the speech on the server too.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._messages = aiter(call)
        self._reader = _responses.SpeechReader()
        self._closed = False

    async def __anext__(self) -> Chunk:
        try:
            while not self._closed:
                chunk = self._reader.chunk(await anext(self._messages))
                if chunk is not None:
                    return chunk
        except StopAsyncIteration:
            self._reader.end()
            raise
        except asyncio.CancelledError:
            if not self._closed:  # the waiting task was cancelled, not the speech
                raise
        except grpc.RpcError as error:
            if not self._closed:
                raise _responses.rpc_error(error) from None
        except BrokenStream:
            self.close()
            raise
        except VoiceCloneError:
            await self._let_end()
            raise
        if self._reader.finished:
            raise StopAsyncIteration
        raise Cancelled("the speech was closed before its end")

    async def _let_end(self) -> None:
        """Wait for the end of the stream after the server's error; see `client._let_end`."""

        async def rest() -> None:
            async for _ in self._messages:
                pass

        try:
            await asyncio.wait_for(rest(), _channel.END_SECONDS)
        except (grpc.RpcError, asyncio.TimeoutError):
            self._call.cancel()

    async def read(self) -> tuple[NDArray[np.float32], int]:
        """The samples [n] of all chunks that were not iterated yet, and their rate in Hz; waits for the end."""
        return _responses.joined([chunk async for chunk in self]), self._reader.sample_rate

    @property
    def info(self) -> Mapping[str, Any] | None:
        """The latest info of the server on this speech."""
        return self._reader.info

    def close(self) -> None:
        """Stop the speech. Chunks that were not read are lost; a task that waits gets `Cancelled`."""
        self._closed = True
        self._call.cancel()

    async def __aenter__(self) -> AsyncSpeech:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _LaterCall:
    """A call that begins when its coroutine returns it; has the part of a call's interface that `AsyncSpeech` uses."""

    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self._call = _task(call)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for message in await self._call:
            yield message

    def cancel(self) -> None:
        """Cancel the call, or its beginning."""
        if not self._call.cancel() and not self._call.cancelled() and self._call.exception() is None:
            self._call.result().cancel()


def _task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task whose error asyncio does not log if no other task awaits it."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task


class AsyncClient:
    """Voices and speech of one server, over one connection, for one event loop. The arguments are those of `Client`.

    `speak` is no coroutine: `async for chunk in client.speak(...)`, or `await client.speak(...).read()`.
    """

    def __init__(
        self,
        url: str = "localhost:8001",
        *,
        model: str | None = None,
        timeout: float | None = 60.0,
        credentials: grpc.ChannelCredentials | None = None,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> None:
        self._target = _channel.target(url)
        self._credentials = credentials
        self._channel: Any = None
        self._stub: Any = None
        self._stream: Any = None
        self._speeches: WeakSet[AsyncSpeech] = WeakSet()
        self._model = model
        self._default: str | None = None  # the server's default family, once it is known
        self._default_task: asyncio.Task[str] | None = None  # asks the server for it
        self._timeout = timeout
        self._metadata = _channel.metadata(headers, token)

    def speak(
        self,
        text: str,
        *,
        voice: str | None = None,
        reference_audio: Source | None = None,
        reference_text: str | None = None,
        speaker_embedding: ArrayLike | None = None,
        x_vector_only: bool | None = None,
        deadline: float | None = None,
        model: str | None = None,
        **knobs: Unpack[Knobs],
    ) -> AsyncSpeech:
        """Speak `text` in a voice; see `Client.speak`. It needs a running event loop."""
        request = _requests.synthesis(
            text, voice, reference_audio, reference_text, speaker_embedding, x_vector_only, knobs
        )
        self._connect()

        async def begin() -> Any:
            began = time.monotonic()
            family = await self._family(model, deadline)
            return call(family, None if deadline is None else deadline - (time.monotonic() - began))

        def call(family: str, left: float | None) -> Any:
            request.model_name = family
            return self._stream(request, timeout=left, metadata=self._metadata)

        known = model or self._model or self._default
        speech = AsyncSpeech(_LaterCall(begin()) if known is None else call(known, deadline))
        self._speeches.add(speech)
        return speech

    async def upload(
        self,
        name: str,
        audio: Source | None = None,
        *,
        reference_text: str | None = None,
        consent: str | None = None,
        description: str | None = None,
        speaker_embedding: ArrayLike | None = None,
        wait: bool = False,
        timeout: float | None = None,
        policy: Literal["replace", "immutable"] | None = None,
        model: str | None = None,
    ) -> Voice:
        """Register a voice; see `Client.upload`."""
        request = _requests.cache(
            "upload",
            name=name,
            model_type=model or self._model,
            audio=audio,
            reference_text=reference_text,
            consent=consent,
            description=description,
            speaker_embedding=speaker_embedding,
            wait=wait or None,
            timeout=timeout,
            policy=policy,
        )
        return _responses.voice(await self._infer(request, timeout))

    async def list(self) -> Voices:
        """All registered voices."""
        return _responses.voices(await self._infer(_requests.cache("list")))

    async def get(self, name: str) -> Voice:
        """One voice; raises VoiceNotFound."""
        return _responses.voice(await self._infer(_requests.cache("get", name=name)))

    async def delete(self, name: str) -> None:
        """Delete a voice; see `Client.delete`."""
        await self._infer(_requests.cache("delete", name=name))

    async def prepare(
        self,
        name: str,
        force: bool = False,
        *,
        mode: str | None = None,
        timeout: float | None = None,
        model: str | None = None,
    ) -> Voice:
        """Prepare a voice; see `Client.prepare`."""
        family = await self._family(model)
        request = _requests.cache(
            "prepare", name=name, model_type=family, force=force or None, mode=mode, timeout=timeout
        )
        return _responses.voice(await self._infer(request, timeout))

    async def speaker_embedding(self, name: str, *, model: str | None = None) -> NDArray[np.float32]:
        """The speaker embedding of a voice; see `Client.speaker_embedding`."""
        request = _requests.cache("resolve", name=name, model_type=await self._family(model))
        return _responses.speaker_embedding(await self._infer(request))

    async def models(self) -> Names:
        """The model families of the server; see `Client.models`."""
        return _responses.models(await self._infer(_requests.cache("stats")))

    async def ready(self, *, model: str | None = None) -> bool:
        """Whether the server can be reached and a model family is ready; see `Client.ready`."""
        try:
            request = service_pb2.ModelReadyRequest(name=await self._family(model))
            answer = await self._connect().ModelReady(request, timeout=self._timeout, metadata=self._metadata)
        except Unsupported:
            raise
        except (grpc.RpcError, VoiceCloneError):
            return False
        return bool(answer.ready)

    async def stats(self) -> dict[str, Any]:
        """Counters of the server's voice cache, and its model families."""
        return dict(_responses.result(await self._infer(_requests.cache("stats"))))

    async def export(self, name: str | None = None, *, include_audio: bool = True) -> bytes:
        """One voice, or all, as a bundle; see `Client.export`."""
        return _responses.artifacts(
            await self._infer(_requests.cache("export", name=name, include_audio=None if include_audio else False))
        )

    async def import_(self, bundle: Source, reextract: bool = False) -> Voices:
        """Register the voices of a bundle; see `Client.import_`."""
        return _responses.voices(
            await self._infer(_requests.cache("import", audio=bundle, reextract=reextract or None))
        )

    async def close(self) -> None:
        """Close the connection and cancel the speeches that run."""
        for speech in tuple(self._speeches):
            speech.close()  # gRPC would cancel the call, which looks like a cancellation of the waiting task
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _connect(self) -> Any:
        """The stub; created with the first call, because a channel belongs to the event loop that creates it."""
        if self._channel is None:
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self._target, _channel.OPTIONS)
            else:
                self._channel = grpc.aio.secure_channel(self._target, self._credentials, _channel.OPTIONS)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
            self._stream = _channel.stream_of(self._channel)
        return self._stub

    async def _family(self, model: str | None = None, limit: float | None = None) -> str:
        """The family of a call; see `Client._family`."""
        known = model or self._model or self._default
        if known is not None:
            return known
        if self._default_task is None or self._default_task.done():
            self._default_task = _task(self._find_default())
        task = self._default_task  # shared: the cancellation of one call must not cancel it
        if not (await asyncio.wait((task,), timeout=_channel.shorter(self._timeout, limit)))[0]:
            raise DeadlineExceeded("the server did not answer in time")
        if task.cancelled():
            raise Cancelled("the client was closed")
        try:
            return task.result()
        except VoiceCloneError as error:
            raise _responses.without_default(error) from None

    async def _find_default(self) -> str:
        self._default = _responses.default_model(await self.models())
        return self._default

    async def _infer(self, request: Any, more: float | None = None) -> Any:
        timeout = _channel.timeout(self._timeout, more)
        try:
            return await self._connect().ModelInfer(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise _responses.rpc_error(error) from None
