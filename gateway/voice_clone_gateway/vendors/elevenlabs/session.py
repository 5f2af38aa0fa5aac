"""The protocols of ElevenLabs' WebSockets for one voice: `stream-input` for one text, `multi-stream-input` for several
at once. `dialogue_session` has those for several voices.

From the client, each message an object:

    text            more of the text, spoken while it comes. "" ends the text of `stream-input`; to several contexts it
                    is a sign of life.
    flush           speak the text so far, without waiting for more.
    voice_settings  in the first message of a text: `speed`. There is nothing like the others here.
    pronunciation_dictionary_locators  in the first message of a text: kept dictionaries.
    context_id      to which of the texts the message belongs; without it, to "default".
    close_context   the text is complete. What was not flushed is dropped, with all audio of its context. A second one
                    drops what was flushed, too.
    close_socket    the same for all contexts; then the connection is closed.
    xi_api_key      in the first message, of clients that cannot send a header; also xi-api-key, authorization.

To the client

    audio           base64, with contextId.
    alignment       characters whose times are known since the message before, or null: chars, charStartTimesMs and
                    charDurationsMs. With `sync_alignment=true` times are those of the context, else since the end of
                    the character that was sent before; they leave no hole, and the text ends with a blank. A message
                    may have it without audio. normalizedAlignment is the same.
    isFinal         true: all audio of a text, or of a context, was sent. A connection of one text is then closed.
    error           a code, with message and the code with which the connection is then closed: 1008 or, if the server
                    is at fault, 1011.
"""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from voice_clone_words.words import Word

from ...http.errors import HTTPFailure
from ...live.config import StreamConfig
from ...live.utterance import Piece, Utterance
from ...schemas import Pronunciation
from ..session import VendorSession, read, refused
from .alignment import CharacterTimes
from .messages import Message, TextMessage
from .speech_schemas import pronunciations_of

M = TypeVar("M", bound=Message)


@dataclass
class Context:
    """A text whose messages still come."""

    config: StreamConfig
    unflushed: bool = False
    """Whether there is text behind the last flush."""


@dataclass
class Times:
    """When an utterance is spoken."""

    characters: CharacterTimes = field(default_factory=lambda: CharacterTimes(""))
    words: list[Word] = field(default_factory=list)
    """That were not told yet."""


class ElevenLabsSession(VendorSession, Generic[M]):
    """A session of any of their protocols, in which a context has a lane of its own."""

    messages: type[M]
    """What the client sends."""

    async def follow(self, message: Any) -> None:
        await self.execute(read(self.messages, message))

    @abstractmethod
    async def execute(self, message: M) -> None:
        """Execute a message."""

    @abstractmethod
    def place(self, utterance: Utterance) -> dict[str, str]:
        """Which context a message to the client is about."""

    def configured(self, message: Message, others: int) -> StreamConfig:
        """How to speak a context that begins with this message.

        Raises:
            HTTPFailure: too many are open, or a strict gateway refuses settings without an effect.
        """
        if others >= self._settings.session_utterances:
            text = f"{others} contexts are open, the maximum of this gateway; close one"
            raise HTTPFailure(429, text, "too_many_utterances")
        locators = message.pronunciation_dictionary_locators
        named = [Pronunciation.model_validate(each) for each in pronunciations_of(locators)]
        config = self._config.model_copy(update={"pronunciations": [*(self._config.pronunciations or ()), *named]})
        settings = message.voice_settings
        if settings is None:
            return config
        if self._settings.strict and (ignored := settings.ignored()):
            raise refused("voice_settings", f"{', '.join(ignored)}: nothing here; leave it out, this gateway is strict")
        return config.model_copy(update={"speed": config.speed if settings.speed is None else settings.speed})

    async def tell_error(self, message: str, code: str, close_code: int, utterance: Utterance | None) -> None:
        place = {} if utterance is None else self.place(utterance)
        await self.send_message({"message": message, "error": code, "code": close_code, **place})


class _TextSession(ElevenLabsSession[TextMessage]):
    """A session of one voice, in which a context is an utterance."""

    messages = TextMessage

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._config = self._config.model_copy(update={"timestamp_granularities": ["word"]})
        self._synchronous = self._websocket.query_params.get("sync_alignment") == "true"
        self._times = WeakKeyDictionary[Utterance, Times]()

    async def tell_words(self, utterance: Utterance, words: Sequence[Word]) -> None:
        self._times.setdefault(utterance, Times()).words.extend(words)

    async def add(self, context: Context, lane: str, message: TextMessage) -> None:
        """Add a message's text to its context."""
        if message.text:
            await self.write(message.text, context.config, lane)
            context.unflushed = context.unflushed or not message.text.isspace()
        if message.flush:
            self.flush(lane)
            context.unflushed = False

    async def tell_audio(self, utterance: Utterance, piece: Piece, data: bytes) -> None:
        times = self._alignment(utterance)
        await self._tell(base64.b64encode(data).decode(), None, self.place(utterance), times)

    async def tell_end_of(self, utterance: Utterance) -> None:
        times = self._alignment(utterance, last=True)
        if times is not None:
            await self._tell(None, None, self.place(utterance), times)
        await self.tell_final(self.place(utterance))

    async def tell_final(self, place: dict[str, str]) -> None:
        await self._tell(None, True, place)

    def _alignment(self, utterance: Utterance, last: bool = False) -> dict[str, Any] | None:
        """The characters that were not told yet, as far as their times are known."""
        times = self._times.get(utterance)
        if times is None or utterance.words is None:
            return None
        text, characters = utterance.words.text, times.characters
        characters.text = f"{text} " if last and not text[-1:].isspace() else text
        since = 0.0 if self._synchronous else characters.time
        found = characters.take(times.words, last)
        times.words.clear()
        return found.milliseconds(since) if found.characters else None

    async def _tell(
        self, audio: str | None, final: bool | None, place: dict[str, str], times: dict[str, Any] | None = None
    ) -> None:
        alignment = {"alignment": times, "normalizedAlignment": times}
        await self.send_message({"audio": audio, "isFinal": final, **alignment, **place})


class StreamInputSession(_TextSession):
    """One text."""

    _context: Context | None = None

    async def execute(self, message: TextMessage) -> None:
        context = self._context = self._context or Context(self.configured(message, 0))
        await self.add(context, "", message)
        if message.text == "" and not message.flush:
            self.end(context.config)
            await self.finish()

    def place(self, utterance: Utterance) -> dict[str, str]:
        return {}


class MultiStreamInputSession(_TextSession):
    """Several texts, each in a context."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._contexts: dict[str, Context] = {}

    async def execute(self, message: TextMessage) -> None:
        lane = message.context_id or "default"
        if message.close_socket:
            for each in [*self._contexts]:
                await self._close(each)
            await self.finish()
        elif message.close_context:
            await self._close(lane)
        elif (context := self._contexts.get(lane) or self._open_context(lane, message)) is not None:
            await self.add(context, lane, message)

    def place(self, utterance: Utterance) -> dict[str, str]:
        return {"contextId": utterance.lane}

    def _open_context(self, lane: str, message: TextMessage) -> Context | None:
        """A new context; none for a sign of life."""
        if not message.text:
            return None
        context = self._contexts[lane] = Context(self.configured(message, len(self._contexts)))
        return context

    async def _close(self, lane: str) -> None:
        """The end of a context: of its text or, if that is not flushed or was closed before, of its audio, too."""
        context = self._contexts.pop(lane, None)
        if context is not None and not context.unflushed:
            self.end(context.config, lane)
            return
        closed_before = context is None
        if await self.stop(lambda each: each.lane == lane and each.complete.is_set() == closed_before):
            await self.tell_final({"contextId": lane})
