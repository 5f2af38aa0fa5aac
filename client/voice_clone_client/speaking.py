"""The connections of a client, for whom it acts, and its speeches."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import grpc

from . import requests, responses
from .backends import EVENT_LOOP, Once
from .bundles import id_of
from .errors import DeadlineExceeded, VoiceCloneError
from .servers import addresses, channel
from .servers.servers import Servers
from .speeches.speech import AsyncSpeech
from .types import LongOptions, Mark, SpeechOptions, StreamOptions

if TYPE_CHECKING:  # imported where a text is split: what splits it is a fifth of the time to import the client
    from typing_extensions import Self, Unpack
    from voice_clone_text.parts import Part, WrittenText

    from .long_text.long_speech import AsyncLongSpeech
    from .speeches.streaming_text import AsyncStreamingTextSpeech, PartSpeech
    from .word_times import AsyncWordTimes


class AsyncSpeaking:
    """The part of `AsyncClient` that connects and speaks."""

    _backend = EVENT_LOOP

    def __init__(
        self,
        url: str | None = None,
        *,
        model: str | None = None,
        timeout: float | None = 60.0,
        credentials: grpc.ChannelCredentials | None = None,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        owner: str | None = None,
        max_owned: int | None = None,
        max_owned_bytes: int | None = None,
        reserved: Sequence[str] = (),
        mark: Mark | None = None,
        proxy: str | None = None,
    ) -> None:
        sent = channel.metadata(headers, addresses.token(token))
        self._servers = Servers(self._backend, addresses.server(url), credentials, sent, addresses.proxy(proxy))
        self._shared = False  # the connections are another client's
        self._model = model
        self._timeout = timeout
        self._owner, self._mark = owner, mark
        self._limits: dict[str, Any] = {"max_owned": max_owned, "max_owned_bytes": max_owned_bytes}
        self._reserved = tuple(reserved)
        self._default = Once(self._backend, self._find_default)
        # A speech is added to each set: that of its client, and those of the clients whose connections it uses.
        self._speeches: tuple[WeakSet[AsyncSpeech], ...] = (WeakSet(),)
        self._remembering = threading.Lock()

    def acting_for(
        self,
        owner: str | None,
        max_owned: int | None = None,
        mark: Mark | None = None,
        reserved: Sequence[str] = (),
        max_owned_bytes: int | None = None,
    ) -> Self:
        """Return a client that acts for another owner over the same connections, which end with this client.

        Args:
            owner, max_owned, reserved, max_owned_bytes: as of the class.
            mark: as of the class; None takes that of this client.
        """
        other = copy(self)
        other._shared = True
        other._owner, other._mark = owner, mark or self._mark
        other._limits = {"max_owned": max_owned, "max_owned_bytes": max_owned_bytes}
        other._reserved = tuple(reserved)
        other._speeches = (WeakSet(), *self._speeches)
        return other

    @property
    def owner(self) -> str | None:
        """The owner for whom the client acts; None is the operator."""
        return self._owner

    def speak(
        self,
        text: str,
        *,
        deadline: float | None = None,
        **options: Unpack[SpeechOptions],
    ) -> AsyncSpeech:
        """Speak `text` in a voice: one of `voice`, `reference_audio`, `speaker_embedding`, `voice_prompt`. Only a
        family that needs no voice also speaks without any of them.

        Args:
            text: the words.
            deadline: maximum seconds of the whole speech.
            **options: see `SpeechOptions`.

        Raises, here or with the first chunk:
            InvalidArgument, VoiceNotFound, Unsupported, Overloaded, DeadlineExceeded, and with any chunk BrokenStream.
        """
        request = requests.speech(text, options, self._owner, self._mark)
        began = time.monotonic()
        family = partial(self.family, options.get("model"), deadline)
        sent = channel.metadata(options.get("headers"), None)
        call = self._servers.stream(request, family, deadline, headers=sent)
        reader = responses.SpeechReader(options.get("require_whole", False), self._mark)
        speech = AsyncSpeech(call, began, reader)
        if options.get("words"):
            speech.follow(self.word_times(text, options.get("language")))
        return self._remembered(speech)

    def word_times(
        self,
        text: str,
        language: str | None = None,
        *,
        keep: Callable[[int], None] = lambda count: None,
    ) -> AsyncWordTimes:
        """Follow a speech whose samples were changed since it was made, such as in speed: `took` gets each chunk of it
        as it is heard, `wait` its last words. The option `words` does this for a speech as it is made.

        Args:
            text: of the speech; `write` adds more.
            language: as of `speak`.
            keep: called with the bytes of audio that wait for the aligner from now on, fewer or more. If it raises for
                more of them, words are an estimate.
        """
        from .word_times import AsyncWordTimes

        return AsyncWordTimes(self._servers, text, language, keep=keep)

    def speak_long(
        self,
        text: str,
        *,
        deadline: float | None = None,
        **options: Unpack[LongOptions],
    ) -> AsyncLongSpeech:
        """Speak a text of any length in one voice, sentence by sentence. A short one is the speech that `speak` makes.

        While a sentence is read, the next ones are made, a bounded number of them. The gateway speaks a text in the
        same way: with the same `seed` it has the same samples. The `info` of the speech has the number of `sentences`,
        of `retries` if there were any, and sums of tokens and frames; its `finish_reason` is the worst of theirs.
        Without a voice a long text is not split, as each sentence would have a voice of its own.

        Args:
            text: the words.
            deadline: maximum seconds of the whole speech.
            **options: see `LongOptions`.

        Raises, here or with a chunk: as `speak`.
        """
        from .long_text.long_speech import AsyncLongSpeech
        from .long_text.plan import Plan

        plan, given = Plan.of(options)
        words = given.pop("words", False)
        given = requests.repeatable(text, given)
        speech = AsyncLongSpeech(self, plan, backend=self._backend)
        if words:
            speech.follow(self.word_times(text, given.get("language")))
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
        """Speak a text while it is written, such as the tokens of a language model.

        With several servers one of them speaks it, and no other takes over if that fails.

        A model speaks well only so much in one piece, so a long text is spoken in parts, each of some sentences; the
        rules are in docs/appended_text.md. The audio of a part is that of its whole text. If the model ends a part too
        early, another part goes on with the first sentence that was not read; `info` counts `parts` and `continued`.

        When the text pauses, so does the speech; after some seconds without text the server speaks what it has, and
        `finish_reason` is `text_timeout`. A voice that is cloned in context begins
        later than one with `x_vector_only`: the model first reads about ten tokens of text for each second of its clip.

        Args:
            text: its pieces, cut anywhere. A task of its own iterates them; of the blocking client, a thread.
            deadline: maximum seconds of the whole speech.
            **options: see `StreamOptions`.

        Raises, here or with the first chunk: as `speak`. Unsupported: the family needs the whole text at once.
        """
        from voice_clone_text.parts import WrittenText

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
        from .speeches.parts_reader import PartsReader
        from .speeches.streaming_text import AsyncStreamingTextSpeech, PartSpeech

        request = requests.speech(None, options, self._owner, self._mark, StreamOptions)
        began = time.monotonic()
        family, changed = partial(self.family, options.get("model"), deadline), self._backend.changes()

        def begin(part: Part) -> PartSpeech:
            now = time.monotonic()
            left = deadline if deadline is None or of_each_part else deadline - (now - began)
            call = self._servers.stream(requests.of_part(request, part), family, left, part.id, repeatable=False)
            return PartSpeech(call, now, part, text, changed, self._timeout, family, self._mark)

        max_frames = None if of_each_part else options.get("max_frames")
        whole = options.get("require_whole", False)
        reader = PartsReader(text, options.get("seed"), max_frames, whole)
        speech = AsyncStreamingTextSpeech(begin, began, reader, changed, self._backend)
        if options.get("words"):
            speech.follow(self.word_times("", options.get("language")))
        self._remembered(speech)
        return speech

    async def family(self, model: str | None = None, limit: float | None = None) -> str:
        """Return the family of a call: `model`, or else the client's, or else the server's default. The server is asked
        once, in at most `limit` seconds.

        Raises:
            VoiceCloneError: the name cannot be sent; or the default is needed, and the server did not answer it.
        """
        given = model or self._model
        if given:
            return requests.family(given)
        job = self._default.begin(again=False)
        if not job.done() and not await self._backend.wait(job, channel.shorter(self._timeout, limit)):
            raise DeadlineExceeded("the server did not answer in time")
        try:
            return job.result()
        except VoiceCloneError as error:
            raise responses.without_default(error) from None

    async def close(self) -> None:
        """Close the connections. Speeches that run and calls that wait end with `Cancelled`."""
        with self._remembering:
            speeches = tuple(self._speeches[0])
        for speech in speeches:
            speech.close()  # gRPC would cancel the call, which looks like a cancellation of the waiting task
        if not self._shared:
            await self._servers.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _find_default(self) -> str:
        return responses.default_model(responses.models(await self._cache("stats")))

    def _remembered(self, speech: AsyncSpeech) -> AsyncSpeech:
        """The same speech, which ends with the connections."""
        with self._remembering:
            for speeches in self._speeches:
                speeches.add(speech)
        return speech

    async def _cache(self, operation: str, **fields: Any) -> Any:
        """The answer to an operation on voices."""
        limits = self._limits if operation in requests.OWNING else {}
        request = requests.cache(operation, owner=self._owner, reserved=self._reserved, **limits, **fields)
        return await self._servers.infer(request, channel.timeout(self._timeout, fields.get("timeout")), id_of(fields))
