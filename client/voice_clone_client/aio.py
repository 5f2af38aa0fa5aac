"""The client for asyncio: the methods of `client.Client` as coroutines. The docstrings there are the full ones."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray
from voice_clone_text.parts import Part, WrittenText

from . import designs, requests, responses
from ._client_base import ClientBase
from .bundles import ExportedBundle, imported_part
from .clips import Source
from .errors import DeadlineExceeded, Unsupported, VoiceCloneError
from .fields import Knobs
from .long_text.async_long_speech import AsyncLongSpeech
from .long_text.plan import Plan
from .servers import channel
from .servers.async_calls import quiet_task
from .servers.asynchronous import AsyncServers
from .sources import LARGEST_BUNDLE, parts
from .speeches.async_speech import AsyncSpeech
from .speeches.async_streaming_text import AsyncPartSpeech, AsyncStreamingTextSpeech, Bell
from .speeches.parts_reader import PartsReader
from .types import (
    Candidate,
    Candidates,
    Consent,
    Consents,
    Detection,
    Family,
    KeepOptions,
    LongOptions,
    Names,
    Presets,
    SpeechOptions,
    StreamOptions,
    UploadOptions,
    Voice,
    Voices,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncClient(ClientBase[AsyncServers]):
    """Voices and speech of one server or of several, for one event loop. The arguments are those of `Client`.

    `speak` is no coroutine: `async for chunk in client.speak(...)`, or `await client.speak(...).read()`.
    """

    _connect = AsyncServers

    def _begin(self) -> None:
        # A speech is added to each set: that of its client, and those of the clients whose connections it uses.
        self._speeches: tuple[WeakSet[AsyncSpeech], ...] = (WeakSet(),)
        self._default: str | None = None  # the server's default family, once it is known
        self._default_task: asyncio.Task[str] | None = None  # asks the server for it

    def _begin_shared(self) -> None:
        self._speeches, self._default_task = (WeakSet(), *self._speeches), None

    def speak(
        self,
        text: str,
        *,
        deadline: float | None = None,
        **options: Unpack[SpeechOptions],
    ) -> AsyncSpeech:
        """Speak `text` in a voice; see `Client.speak`. It needs a running event loop."""
        request = requests.speech(text, options, self._owner, self._mark)
        began = time.monotonic()
        family = partial(self.family, options.get("model"), deadline)
        sent = channel.metadata(options.get("headers"), None)
        call = self._servers.stream(request, family, deadline, headers=sent)
        reader = responses.SpeechReader(options.get("require_whole", False), self._mark)
        return self._remembered(AsyncSpeech(call, began, reader))

    def speak_long(
        self,
        text: str,
        *,
        deadline: float | None = None,
        **options: Unpack[LongOptions],
    ) -> AsyncLongSpeech:
        """Speak a text of any length in one voice; see `Client.speak_long`. It needs a running event loop."""
        plan, given = Plan.of(options)
        given = requests.repeatable(text, given)
        speech = AsyncLongSpeech(self, plan)
        speech.say(text, at_once=requests.is_voiceless(given))
        speech.begin(given, deadline)
        self._remembered(speech)
        return speech

    def speak_stream(
        self,
        text: AsyncIterable[str] | Iterable[str],
        *,
        deadline: float | None = None,
        **options: Unpack[StreamOptions],
    ) -> AsyncSpeech:
        """Speak a text while it is written; see `Client.speak_stream`. It needs a running event loop."""
        speech = self.speak_written(WrittenText(), deadline=deadline, **options)
        speech.read_from(text)
        return speech

    def speak_written(
        self,
        text: WrittenText,
        *,
        deadline: float | None = None,
        of_each_part: bool = False,
        **options: Unpack[StreamOptions],
    ) -> AsyncStreamingTextSpeech:
        """Speak a text to which its owner writes.

        Args:
            of_each_part: `deadline` and `max_frames` are those of each part, not of the whole speech.
            The others: as of `speak_stream`.
        """
        request = requests.speech(None, options, self._owner, self._mark, StreamOptions)
        began = time.monotonic()
        family, changed = partial(self.family, options.get("model"), deadline), Bell()

        def begin(part: Part) -> AsyncPartSpeech:
            now = time.monotonic()
            left = deadline if deadline is None or of_each_part else deadline - (now - began)
            call = self._servers.stream(requests.of_part(request, part), family, left, part.id, repeatable=False)
            return AsyncPartSpeech(call, now, part, text, changed, self._timeout, family, self._mark)

        max_frames = None if of_each_part else options.get("max_frames")
        whole = options.get("require_whole", False)
        reader = PartsReader(text, options.get("seed"), max_frames, whole)
        speech = AsyncStreamingTextSpeech(begin, began, reader, changed)
        self._remembered(speech)
        return speech

    async def upload(self, name: str, audio: Source | None = None, **options: Unpack[UploadOptions]) -> Voice:
        """Register a voice; see `Client.upload`."""
        return responses.voice(await self._cache("upload", **requests.upload(name, audio, options, self._model)))

    async def design(
        self,
        description: str,
        text: str,
        *,
        seeds: int | Sequence[int] = 3,
        model: str | None = None,
        **knobs: Unpack[Knobs],
    ) -> Candidates:
        """Let a model make voices of a description; see `Client.design`."""
        orders = designs.orders(description, seeds, model or self._model, await self.families(), knobs)
        async with AsyncExitStack() as stack:
            speeches = [await stack.enter_async_context(self.speak(text, **order)) for order in orders]
            heard = [await speech.read() for speech in speeches]  # they are made side by side
        return [designs.candidate(sound, text, description, o) for sound, o in zip(heard, orders, strict=True)]

    async def keep(self, name: str, candidate: Candidate, **options: Unpack[KeepOptions]) -> Voice:
        """Register a candidate of `design` as a voice; see `Client.keep`."""
        return await self.upload(name, **designs.upload_of(candidate, options))

    async def list(self, *, limit: int | None = None, after: str | None = None) -> Voices:
        """The registered voices, by name; see `Client.list`."""
        if limit is not None:
            return responses.voices(await self._cache("list", limit=limit, after=after))
        found: Voices = []
        while (
            len(page := await self.list(limit=requests.PAGE, after=found[-1].name if found else after)) == requests.PAGE
        ):
            found += page
        return found + page

    async def presets(self) -> Presets:
        """The voices that the checkpoints of the server's families bring; see `Client.presets`."""
        return responses.presets(await self._cache("presets"))

    async def get(self, name: str) -> Voice:
        """One voice; raises VoiceNotFound."""
        return responses.voice(await self._cache("get", name=name))

    async def delete(self, name: str) -> None:
        """Delete a voice; see `Client.delete`."""
        await self._cache("delete", name=name)

    async def record_consent(
        self, id: str, audio: Source | None = None, *, description: str, language: str | None = None
    ) -> Consent:
        """Keep the recording of a consent; see `Client.record_consent`."""
        answer = await self._cache("record_consent", name=id, audio=audio, description=description, language=language)
        return responses.consent(answer)

    async def consents(self, *, limit: int = requests.PAGE, after: str | None = None) -> Consents:
        """The recordings of consents; see `Client.consents`."""
        return responses.consents(await self._cache("list", kind="consent", limit=limit, after=after))

    async def consent(self, id: str) -> Consent:
        """The recording of a consent; raises VoiceNotFound."""
        return responses.consent(await self._cache("get", kind="consent", name=id))

    async def delete_consent(self, id: str) -> None:
        """Erase the recording of a consent; voices that name it stay. Raises VoiceNotFound."""
        await self._cache("delete", kind="consent", name=id)

    async def aliases(self) -> dict[str, str]:
        """Further names of voices, each with its voice."""
        return responses.aliases(await self._cache("list", kind="alias"))

    async def set_alias(self, alias: str, voice: str) -> None:
        """Give a voice a further name; see `Client.set_alias`."""
        await self._cache("set_alias", name=alias, voice=voice)

    async def remove_alias(self, alias: str) -> None:
        """Remove an alias; its voice stays. Raises VoiceNotFound."""
        await self._cache("delete", kind="alias", name=alias)

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
        family = await self.family(model)
        answer = await self._cache(
            "prepare", name=name, model_type=family, force=force or None, mode=mode, timeout=timeout
        )
        return responses.voice(answer)

    async def speaker_embedding(self, name: str, *, model: str | None = None) -> NDArray[np.float32]:
        """The speaker embedding of a voice; see `Client.speaker_embedding`."""
        answer = await self._cache("resolve", name=name, model_type=await self.family(model))
        return responses.speaker_embedding(answer)

    async def models(self) -> Names:
        """The model families of the server; see `Client.models`."""
        return responses.models(await self._cache("stats"))

    async def families(self) -> dict[str, Family]:
        """The model families of the server by name; see `Client.families`."""
        return responses.families(await self._cache("stats"))

    async def ready(self, *, model: str | None = None) -> bool:
        """Whether a server can be reached where a model family is ready; see `Client.ready`."""
        try:
            return await self._servers.ready(await self.family(model), self._timeout)
        except Unsupported:
            raise
        except VoiceCloneError:
            return False

    async def stats(self) -> dict[str, Any]:
        """Counters of the server's voice cache, and its model families."""
        return dict(responses.result(await self._cache("stats")))

    async def export(self, name: str | None = None, *, include_audio: bool = True) -> bytes:
        """One voice, or all, as a bundle; see `Client.export`."""
        return b"".join([part async for part in self.export_parts(name, include_audio=include_audio)])

    async def export_parts(self, name: str | None = None, *, include_audio: bool = True) -> AsyncIterator[bytes]:
        """As `export`, in parts; see `Client.export_parts`."""
        bundle = ExportedBundle(name=name, include_audio=None if include_audio else False)
        try:
            while bundle.offset < bundle.size:
                yield await self.export_part(bundle)
        finally:
            self.forget_export(bundle)

    async def export_part(self, bundle: ExportedBundle) -> bytes:
        """The next part of a bundle; see `Client.export_part`."""
        return bundle.take(await self._cache("export", **bundle.fields()))

    def forget_export(self, bundle: ExportedBundle) -> None:
        """Let the server forget a bundle of which not all is wanted; who leaves waits for no answer."""
        if bundle.skip():
            quiet_task(self._cache("export", **bundle.fields()))

    async def import_(self, bundle: Source, reextract: bool = False, *, replace: bool = False) -> Voices:
        """Register the voices of a bundle; see `Client.import_`."""

        async def read() -> AsyncIterator[bytes]:
            for part in parts(bundle, LARGEST_BUNDLE):
                yield part

        return await self.import_parts(read(), reextract, replace)

    async def import_parts(
        self, bundle: AsyncIterable[bytes], reextract: bool = False, replace: bool = False
    ) -> Voices:
        """Register the voices of a bundle whose parts have `PART` bytes or more; the last one is smaller."""
        name, index, answer = uuid.uuid4().hex, 0, None
        async for part in bundle:
            fields = imported_part(name, index, part)
            answer = await self._cache("import", reextract=reextract or None, replace=replace or None, **fields)
            index += 1
        return responses.voices(answer)

    async def detect(self, audio: Source) -> Detection:
        """Look for the mark of synthetic speech in a sound; see `Client.detect`."""
        try:
            answer = await self._servers.infer(requests.detection(audio), requests.detection_seconds(self._timeout))
        except VoiceCloneError as error:
            raise responses.without_detector(error) from None
        return responses.detection(answer)

    async def close(self) -> None:
        """Close the connections. Speeches that run and calls that wait end with `Cancelled`."""
        for speech in tuple(self._speeches[0]):
            speech.close()  # gRPC would cancel the call, which looks like a cancellation of the waiting task
        if not self._shared:
            await self._servers.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _remembered(self, speech: AsyncSpeech) -> AsyncSpeech:
        """The same speech, which ends with the connections."""
        for speeches in self._speeches:
            speeches.add(speech)
        return speech

    async def family(self, model: str | None = None, limit: float | None = None) -> str:
        """The family of a call; see `Client.family`."""
        given = model or self._model
        if given:
            return requests.family(given)
        if self._default is not None:
            return self._default
        if self._default_task is None or self._default_task.done():
            self._default_task = quiet_task(self._find_default())
        task = self._default_task  # shared: the cancellation of one call must not cancel it
        if not (await asyncio.wait((task,), timeout=channel.shorter(self._timeout, limit)))[0]:
            raise DeadlineExceeded("the server did not answer in time")
        try:
            return task.result()
        except VoiceCloneError as error:
            raise responses.without_default(error) from None

    async def _find_default(self) -> str:
        self._default = responses.default_model(await self.models())
        return self._default

    async def _cache(self, operation: str, **fields: Any) -> Any:
        """The answer to an operation on voices."""
        return await self._servers.infer(*self._operation(operation, fields))
