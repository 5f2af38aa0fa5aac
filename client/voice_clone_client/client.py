"""The client for ordinary code; `aio` has the same for asyncio."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import grpc
import numpy as np
from numpy.typing import ArrayLike, NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc

from . import _channel, _requests, _responses
from ._requests import Source
from .errors import BrokenStream, Cancelled, VoiceCloneError
from .types import Chunk, Knobs, Voice

if TYPE_CHECKING:
    from typing_extensions import Unpack

Voices = list[Voice]  # inside the class, `list` is the method


class Speech(Iterator[Chunk]):
    """A speech as it is made: an iterator of its chunks.

    The request is on its way already; what the server says against it is raised with the first chunk. Close it, or use
    it in a `with`, to stop the server's work early. `BrokenStream` is raised if a chunk is missing: a speech that was
    iterated to its end is whole.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._reader = _responses.SpeechReader()
        self._closed = False

    def __next__(self) -> Chunk:
        try:
            while not self._closed:
                chunk = self._reader.chunk(next(self._call))
                if chunk is not None:
                    return chunk
        except StopIteration:
            self._reader.end()
            raise
        except grpc.RpcError as error:
            if not self._closed:
                raise _responses.rpc_error(error) from None
        except BrokenStream:
            self.close()
            raise
        except VoiceCloneError:
            _let_end(self._call)
            raise
        if self._reader.finished:
            raise StopIteration
        raise Cancelled("the speech was closed before its end")

    def read(self) -> tuple[NDArray[np.float32], int]:
        """All samples [n] that were not iterated yet, and their rate in Hz; waits for the end."""
        return _responses.joined(list(self)), self._reader.sample_rate

    @property
    def info(self) -> Mapping[str, Any] | None:
        """What the server told last of this speech; after the end: frames, `cache` status, milliseconds by stage."""
        return self._reader.info

    def close(self) -> None:
        """Stop the speech, from any thread. Chunks that still came are lost; whoever waits for one gets `Cancelled`."""
        self._closed = True
        self._call.cancel()

    def __enter__(self) -> Speech:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _let_end(call: Any) -> None:
    """Let a stream end by itself after the server's error.

    One that is cancelled just then keeps its model loaded in a Triton 2.51, which then waits for it when it stops.
    """
    timer = threading.Timer(_channel.END_SECONDS, call.cancel)
    timer.start()
    with contextlib.suppress(grpc.RpcError):
        for _ in call:
            pass
    timer.cancel()


class Client:
    """Voices and speech of one server, over one connection. For any number of threads.

    Args:
        url: host:port of the server's gRPC endpoint.
        model: the family that speaks: the name of its public model.
        timeout: seconds that any call but `speak` may take; None waits for ever.
        credentials: `tls_credentials(...)` for TLS; None sends in the clear.
        headers: sent with every call, e.g. the key of a restricted protocol.
        token: the server's write token, if it has one: to upload, delete, export, import and build voices anew.

    Raises:
        InvalidArgument: `url` is no host:port, or `token` no token. Nothing is connected before the first call; each
            call raises `ConnectionFailed` if the server is not there, `PermissionDenied` if it wants a token, and
            the other `VoiceCloneError`s as its docstring says.
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
        target = _channel.target(url)
        if credentials is None:
            self._channel = grpc.insecure_channel(target, _channel.OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, credentials, _channel.OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._stream = _channel.stream_of(self._channel)
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
    ) -> Speech:
        """Say `text` in a voice: exactly one of `voice`, `reference_audio`, `speaker_embedding`.

        Args:
            text: what is said.
            voice: a registered voice.
            reference_audio: path or bytes of a clip (WAV, FLAC, OGG, MP3) of 1 to 30 s.
            reference_text: its transcript, for in-context cloning.
            speaker_embedding: float [dimension of the model].
            x_vector_only: True clones by the speaker embedding alone, False insists on in-context cloning.
            deadline: seconds until the whole speech must be there.
            **knobs: see `Knobs`.

        Raises, here or with the first chunk:
            InvalidArgument, VoiceNotFound, Unsupported, Overloaded, DeadlineExceeded, and with any chunk BrokenStream.
        """
        request = _requests.synthesis(
            self._model, text, voice, reference_audio, reference_text, speaker_embedding, x_vector_only, knobs
        )
        return Speech(self._stream(request, timeout=deadline, metadata=self._metadata))

    def upload(
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
        """Register a voice, or replace the one of that name: exactly one of `audio`, `speaker_embedding`.

        Args:
            name: 1-64 letters, digits, spaces, `. _ -`; case does not matter.
            audio: path or bytes of a clip (WAV, FLAC, OGG, MP3) of 1 to 30 s.
            reference_text: its transcript; with it the voice is cloned in context, else by its speaker embedding alone.
            consent: how the speaker agreed to this.
            description: free text.
            speaker_embedding: float [dimension of the model], instead of a clip.
            wait: return when its `artifacts` are ready or failed, not when it is safely stored.
            timeout: seconds to wait for them, if not the server's default.
            policy: `immutable` refuses to replace a voice.

        Raises:
            InvalidArgument, VoiceExists, Overloaded. Whatever fails, an older voice of that name stays.
        """
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
        return _responses.voice(self._infer(request, timeout))

    def list(self) -> Voices:
        """All registered voices."""
        return _responses.voices(self._infer(_requests.cache("list")))

    def get(self, name: str) -> Voice:
        """One voice; raises VoiceNotFound."""
        return _responses.voice(self._infer(_requests.cache("get", name=name)))

    def delete(self, name: str) -> None:
        """Forget a voice and all that was made from it; raises VoiceNotFound."""
        self._infer(_requests.cache("delete", name=name))

    def prepare(
        self, name: str, force: bool = False, *, mode: str | None = None, timeout: float | None = None
    ) -> Voice:
        """Make a voice ready and wait for it; does nothing if it is, unless `force` asks to build it anew.

        Args:
            name: of a registered voice.
            force: build it anew.
            mode: for which cloning, `icl` or `x_vector`; None for that which the voice is spoken in by itself.
            timeout: seconds to wait, if not the server's default.

        Raises:
            VoiceNotFound, Unsupported, Overloaded, DeadlineExceeded.
        """
        request = _requests.cache(
            "prepare", name=name, model_type=self._model, force=force or None, mode=mode, timeout=timeout
        )
        return _responses.voice(self._infer(request, timeout))

    def speaker_embedding(self, name: str) -> NDArray[np.float32]:
        """The speaker embedding [dimension of the model] of a voice; makes it if the voice is not ready.

        Raises:
            VoiceNotFound, Overloaded. Unsupported: the model knows no such thing.
        """
        request = _requests.cache("resolve", name=name, model_type=self._model)
        return _responses.speaker_embedding(self._infer(request))

    def ready(self) -> bool:
        """Whether the server is there and its model ready to speak."""
        try:
            answer = self._stub.ModelReady(
                service_pb2.ModelReadyRequest(name=self._model), timeout=self._timeout, metadata=self._metadata
            )
        except grpc.RpcError:
            return False
        return bool(answer.ready)

    def stats(self) -> dict[str, Any]:
        """Counters of the server's voice cache."""
        return dict(_responses.result(self._infer(_requests.cache("stats"))))

    def export(self, name: str | None = None, *, include_audio: bool = True) -> bytes:
        """One voice, or all, as a bundle for `import_`; raises VoiceNotFound.

        Args:
            name: of the voice; None for all.
            include_audio: with the clips themselves; without them the bundle serves its own checkpoint alone.
        """
        return _responses.artifacts(
            self._infer(_requests.cache("export", name=name, include_audio=None if include_audio else False))
        )

    def import_(self, bundle: Source, reextract: bool = False) -> Voices:
        """Register the voices of a bundle (path or bytes), and return them.

        Args:
            bundle: what `export` gave.
            reextract: make the artifacts anew from the audio in the bundle where they are of another encoder.

        Raises:
            InvalidArgument: it is no bundle, or needs `reextract`. Overloaded, VoiceExists.
        """
        return _responses.voices(self._infer(_requests.cache("import", audio=bundle, reextract=reextract or None)))

    def close(self) -> None:
        """Close the connection; speeches that still run are cancelled."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _infer(self, request: Any, more: float | None = None) -> Any:
        timeout = _channel.timeout(self._timeout, more)
        try:
            return self._stub.ModelInfer(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise _responses.rpc_error(error) from None
