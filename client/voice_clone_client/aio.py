"""The client for asyncio: the methods of `client.Client`, awaited. Their docstrings are there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

import grpc
import grpc.aio
import numpy as np
from numpy.typing import ArrayLike, NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc

from . import _channel, _requests, _responses
from ._requests import Source
from .client import Voices
from .errors import BrokenStream, Cancelled, VoiceCloneError
from .types import Chunk, Knobs, Voice

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncSpeech(AsyncIterator[Chunk]):
    """A speech as it is made: an asynchronous iterator of its chunks; see `Speech`.

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
        """Let the stream end by itself after the server's error; see `client._let_end`."""

        async def rest() -> None:
            async for _ in self._messages:
                pass

        try:
            await asyncio.wait_for(rest(), _channel.END_SECONDS)
        except (grpc.RpcError, asyncio.TimeoutError):
            self._call.cancel()

    async def read(self) -> tuple[NDArray[np.float32], int]:
        """All samples [n] that were not iterated yet, and their rate in Hz; waits for the end."""
        return _responses.joined([chunk async for chunk in self]), self._reader.sample_rate

    @property
    def info(self) -> Mapping[str, Any] | None:
        """What the server told last of this speech."""
        return self._reader.info

    def close(self) -> None:
        """Stop the speech. Chunks that still came are lost; whoever waits for one gets `Cancelled`."""
        self._closed = True
        self._call.cancel()

    async def __aenter__(self) -> AsyncSpeech:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient:
    """Voices and speech of one server, over one connection, for one event loop. Arguments as for `Client`.

    `speak` is no coroutine: `async for chunk in client.speak(...)`, or `await client.speak(...).read()`.
    """

    def __init__(
        self,
        url: str = "localhost:8001",
        *,
        model: str = "qwen3_tts",
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
        **knobs: Unpack[Knobs],
    ) -> AsyncSpeech:
        """Say `text` in a voice; see `Client.speak`. To be called in a running event loop."""
        request = _requests.synthesis(
            self._model, text, voice, reference_audio, reference_text, speaker_embedding, x_vector_only, knobs
        )
        self._connect()
        call = self._stream(request, timeout=deadline, metadata=self._metadata)
        speech = AsyncSpeech(call)
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
    ) -> Voice:
        """Register a voice; see `Client.upload`."""
        request = _requests.cache(
            "upload",
            name=name,
            model_type=self._model,
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
        """Forget a voice; see `Client.delete`."""
        await self._infer(_requests.cache("delete", name=name))

    async def prepare(
        self, name: str, force: bool = False, *, mode: str | None = None, timeout: float | None = None
    ) -> Voice:
        """Make a voice ready; see `Client.prepare`."""
        request = _requests.cache(
            "prepare", name=name, model_type=self._model, force=force or None, mode=mode, timeout=timeout
        )
        return _responses.voice(await self._infer(request, timeout))

    async def speaker_embedding(self, name: str) -> NDArray[np.float32]:
        """The speaker embedding of a voice; see `Client.speaker_embedding`."""
        request = _requests.cache("resolve", name=name, model_type=self._model)
        return _responses.speaker_embedding(await self._infer(request))

    async def ready(self) -> bool:
        """Whether the server is there and its model ready to speak."""
        try:
            answer = await self._connect().ModelReady(
                service_pb2.ModelReadyRequest(name=self._model), timeout=self._timeout, metadata=self._metadata
            )
        except grpc.RpcError:
            return False
        return bool(answer.ready)

    async def stats(self) -> dict[str, Any]:
        """Counters of the server's voice cache."""
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
        """Close the connection; speeches that still run are cancelled."""
        for speech in tuple(self._speeches):
            speech.close()  # before gRPC does, whose cancellation of a call looks like that of the waiting task
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _connect(self) -> Any:
        """The stub; made with the first call, since a channel belongs to the event loop in which it is made."""
        if self._channel is None:
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self._target, _channel.OPTIONS)
            else:
                self._channel = grpc.aio.secure_channel(self._target, self._credentials, _channel.OPTIONS)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
            self._stream = _channel.stream_of(self._channel)
        return self._stub

    async def _infer(self, request: Any, more: float | None = None) -> Any:
        timeout = _channel.timeout(self._timeout, more)
        try:
            return await self._connect().ModelInfer(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise _responses.rpc_error(error) from None
