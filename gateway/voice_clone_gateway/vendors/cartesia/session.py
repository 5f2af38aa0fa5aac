"""The protocol of Cartesia's WebSocket `/tts/websocket`: several texts at once, each in a context.

From the client, each message an object:

    transcript      more of the text of its context, with the voice and all else of `generation`, of which the first
                    message of a context counts. It is spoken while it comes.
    context_id      to which of the texts the message belongs.
    continue        true: more of the text will come. Without it, the text is complete.
    flush           the text so far is complete in itself; the text after it is a new utterance.
    cancel          true: stop the context at once. No message about it follows.

To the client

    chunk           data: audio in base64.
    timestamps      word_timestamps: words whose times are known since the one before, as the client wrote them, with
                    start and end in seconds of the context; if its first message has add_timestamps.
    flush_done      flush_id: all audio of the text before a flush was sent. The first one of a context is 1.
    done            all audio of a context was sent. The connection stays open.
    error           title, message, error_code: a message cannot be followed, or a context has ended with it. The
                    connection stays open.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fastapi import WebSocket
from pydantic import Field
from voice_clone_words.words import Word

from ...http.errors import HTTPFailure, failure
from ...http.keys import Key
from ...live.config import StreamConfig
from ...live.session import Session
from ...live.utterance import Piece, Utterance
from ..orders import Lenient, in_their_words
from ..session import TaggedConfig, checked, read
from .generation import FIELDS, Generation, error_of, has_text_errors, timestamps_of


class Message(Generation):
    """A piece of a text."""

    continue_: bool | None = Field(None, alias="continue")
    flush: bool | None = None


class Cancel(Lenient):
    """The end of a context."""

    cancel: Literal[True]
    context_id: str


@dataclass
class Context:
    """A text whose messages still come."""

    config: StreamConfig
    flushes: int = 0


class CartesiaSession(Session):
    """A session of this protocol. The text of a context up to each flush is an utterance in the lane of the context."""

    def __init__(self, websocket: WebSocket, key: Key) -> None:
        super().__init__(websocket, key)
        self._contexts: dict[str, Context] = {}
        self._flushes: dict[int, int] = {}  # of utterances that a flush has ended
        self._before: dict[str, float] = {}  # seconds of a context, of the audio of its utterances that are over
        self._since = self._loop.time()  # the latest chunk
        self._context_id: str | None = None  # of the message that is followed

    async def follow(self, message: Any) -> None:
        known = message if isinstance(message, dict) else {}
        id = known.get("context_id")
        self._context_id = id if isinstance(id, str) else None
        if known.get("cancel"):
            await self._stop(read(Cancel, message).context_id)
            return
        command = read(Message, message)
        lane = command.context_id or ""
        try:
            await self._add(lane, command)
        except Exception:
            await self._stop(lane)
            raise

    async def _stop(self, lane: str, failed: Utterance | None = None) -> None:
        """End a context at once; an utterance that has failed ends by itself."""
        self._contexts.pop(lane, None)
        self._before.pop(lane, None)
        for utterance in await self.stop(lambda each: each.lane == lane and each is not failed):
            self._flushes.pop(utterance.index, None)

    async def _add(self, lane: str, message: Message) -> None:
        context = self._contexts.get(lane) or self._open_context(lane, message)
        await self.write(message.transcript, context.config, lane)
        if self._contexts.get(lane) is not context:  # it has ended meanwhile, with an utterance that failed
            await self._stop(lane)
            return
        if message.flush:
            context.flushes += 1
            utterance = self._open.get(lane)
            index = self._count if utterance is None else utterance.index
            self.end(context.config, lane)
            self._flushes[index] = context.flushes
        if not message.continue_:
            self._contexts.pop(lane, None)
            self.end(context.config, lane)

    def _open_context(self, lane: str, message: Message) -> Context:
        if len(self._contexts) >= self._settings.session_utterances:
            text = f"{len(self._contexts)} contexts are open, the maximum of this gateway; end one"
            raise HTTPFailure(429, text, "too_many_utterances")
        values = {name: value for name, value in message.values().items() if value is not None}
        if message.add_timestamps:
            values["timestamp_granularities"] = ["word"]
        try:
            fields = {"streaming_mode": "token_level", "voice": message.voice_id, **values}
            config = checked(self._settings, fields, TaggedConfig)
        except HTTPFailure as failed:
            raise in_their_words(failed, FIELDS) from None
        context = self._contexts[lane] = Context(config)
        return context

    async def tell_words(self, utterance: Utterance, words: Sequence[Word]) -> None:
        before = self._before.get(utterance.lane, 0.0)
        moved = [replace(word, start=word.start + before, end=word.end + before) for word in words]
        await self._tell("timestamps", utterance.lane, timestamps_of(moved))

    async def tell_audio(self, utterance: Utterance, piece: Piece, data: bytes) -> None:
        now = self._loop.time()
        step, self._since = 1000 * (now - self._since), now
        await self._tell("chunk", utterance.lane, {"data": base64.b64encode(data).decode(), "step_time": step})

    async def tell_done(self, utterance: Utterance) -> None:
        flush = self._flushes.pop(utterance.index, None)
        if utterance.failed:
            return  # the error was the end
        if flush is None:
            self._before.pop(utterance.lane, None)
            await self._tell("done", utterance.lane, {"done": True})
        else:
            if utterance.words is not None:
                spoken = utterance.sent / utterance.config.speed
                self._before[utterance.lane] = self._before.get(utterance.lane, 0.0) + spoken
            await self._tell("flush_done", utterance.lane, {"flush_done": True, "flush_id": flush})

    async def tell_failure(self, error: Exception, utterance: Utterance | None = None) -> None:
        failed = failure(error, self._id, self._settings.retry_after, {})
        said = error_of(failed, self._id)
        if has_text_errors(self._websocket):
            said["error"] = f"{said['title']}: {said['message']}"
        lane = self._context_id
        if utterance is not None:  # its context ends with it
            lane = utterance.lane
            await self._stop(lane, utterance)
            self._open.pop(lane, None)
            utterance.complete.set()
        await self._tell("error", lane, {"done": True, "status_code": failed.status_code, **said})

    async def _tell(self, kind: str, context_id: str | None, values: Mapping[str, Any]) -> None:
        place = {"context_id": context_id} if context_id else {}
        await self.send_message({"type": kind, "status_code": 200, "done": False, **values, **place})
