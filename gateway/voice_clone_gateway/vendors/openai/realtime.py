"""OpenAI's Realtime, as far as a text is read aloud: no model here listens or thinks.

From the client

    session.update            audio.output with voice, speed and format; output_audio_timestamp_types ["word"]; the
                              rest has no effect here.
    conversation.item.create  a message with `input_text`: what the next response reads.
    response.create           read it, or the messages in its `input`.
    response.cancel           stop at once.
    conversation.item.truncate  item_id, audio_end_ms: so much of the latest response was played.

To the client

    session.created, session.updated
    conversation.item.added
    response.created, response.output_item.added, response.content_part.added
    response.output_audio.delta              audio in base64: by default 16-bit PCM of 24,000 Hz
    response.output_audio_transcript.delta   what is read
    response.output_audio_transcript.done, response.output_audio.done, response.content_part.done
    response.audio_timestamp.delta  a word: text, audio_offset_ms, audio_duration_ms; if they are asked for. OpenAI has
                              no times of words; these are Azure's
    response.audio_timestamp.done
    conversation.item.truncated  with the item, whose transcript is what was heard, if its words have times
    response.output_item.done, response.done  status completed, cancelled or failed; usage
    error                                    the connection stays open
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import APIRouter, WebSocket
from voice_clone_words.words import Word

from ...http.errors import HTTPFailure, failure
from ...http.keys import Key
from ...live.session import Session, serve
from ...live.utterance import Piece, Utterance
from ...speech.audited import usage
from ...speech.spoken_words import SpokenWords
from ..orders import family_of
from ..session import checked, read
from . import events

router = APIRouter()
_OWN_MODELS = ("gpt-", "o1", "o3")
_IGNORED = ("input_audio_buffer.clear", "output_audio_buffer.clear", "conversation.item.delete")
_DEFAULT = {"response_format": "pcm", "sample_rate": 24000}


@dataclass
class _Response:
    """A response, which is an utterance."""

    text: str
    id: str = field(default_factory=lambda: f"resp_{uuid.uuid4().hex[:24]}")
    item: str = field(default_factory=lambda: f"item_{uuid.uuid4().hex[:24]}")
    begun: bool = False
    status: str = "completed"
    error: Mapping[str, Any] | None = None
    words: SpokenWords | None = None


class RealtimeSession(Session):
    """A session of this protocol."""

    def __init__(self, websocket: WebSocket, key: Key, values: dict[str, Any]) -> None:
        super().__init__(websocket, key)
        self._values = values
        self._config = checked(self._settings, values)
        self._session = f"sess_{uuid.uuid4().hex[:24]}"
        self._unread = ""
        self._responses: dict[int, _Response] = {}  # by the index of their utterances
        self._latest: _Response | None = None  # that was heard

    async def greet(self) -> None:
        await self._tell("session.created", session=self._described())

    async def follow(self, message: Any) -> None:
        event = read(events.Event, message)
        if event.type == "session.update":
            values = {**self._values, **(event.session or events.Speaking()).values()}
            self._config, self._values = checked(self._settings, values), values
            await self._tell("session.updated", session=self._described())
        elif event.type == "conversation.item.create":
            item = event.item or events.Item()
            unread = f"{self._unread}\n{item.text}".strip()
            if len(unread) > (most := self._settings.max_input_characters):
                raise HTTPFailure(400, f"item: more than {most} characters wait to be read", "invalid_argument")
            self._unread = unread
            about = {"id": item.id or f"item_{uuid.uuid4().hex[:24]}", "object": "realtime.item", "status": "completed"}
            shown = {**about, **item.model_dump(exclude={"id"}, exclude_none=True)}
            await self._tell("conversation.item.added", previous_item_id=None, item=shown)
        elif event.type == "response.create":
            await self._respond(event.response or events.Response())
        elif event.type == "response.cancel":
            await self._cancel()
        elif event.type == "conversation.item.truncate":
            await self._truncate(event)
        elif event.type not in _IGNORED:
            message = f"{event.type}: no model here listens; send session.update, conversation.item.create and "
            raise HTTPFailure(400, f"{message}response.create with input_text", "unsupported_event", param="type")

    async def _respond(self, asked: events.Response) -> None:
        text = self._unread if asked.input is None else "\n".join(item.text for item in asked.input)
        if not text.strip():
            message = "response: there is nothing to read; send a message with input_text first"
            raise HTTPFailure(400, message, "invalid_request", param="response.input")
        config = checked(self._settings, {**self._values, **asked.values()})
        response = self._responses[self._count] = _Response(text)
        try:
            await self.write(text, config)
            self.end(config)
        except BaseException:
            del self._responses[self._count]
            raise
        if asked.input is None:
            self._unread = ""
        await self._tell("response.created", response=self._shown(response, "in_progress"))

    async def _cancel(self) -> None:
        for utterance in await self.stop():
            response = self._responses.get(utterance.index)
            if response is not None and not utterance.over:
                response.status = "cancelled"
                await self._tell_end_of(utterance)

    async def _truncate(self, event: events.Event) -> None:
        """Say what was heard of the latest response."""
        latest, milliseconds = self._latest, event.audio_end_ms
        if latest is None or event.item_id != latest.item:
            message = "item_id: it must be that of the response that was spoken last"
            raise HTTPFailure(400, message, "invalid_request", param="item_id")
        if milliseconds is None:
            raise HTTPFailure(400, "audio_end_ms: give how much was played", "invalid_request", param="audio_end_ms")
        place: dict[str, Any] = {"item_id": latest.item, "content_index": 0, "audio_end_ms": milliseconds}
        if latest.words is not None:
            heard = replace(latest, text=latest.words.heard(milliseconds / 1000))
            place["item"] = self._item(heard, "incomplete")
        await self._tell("conversation.item.truncated", **place)

    async def tell_start(self, utterance: Utterance, piece: Piece) -> None:
        response = self._responses[utterance.index]
        if not response.begun:
            response.begun, response.words, self._latest = True, utterance.words, response
            await self._of(response, "output_item.added", item=self._item(response, "in_progress"))
            await self._of(response, "content_part.added", part={"type": "audio", "transcript": ""})
        space = " " if piece.index else ""
        await self._of(response, "output_audio_transcript.delta", delta=space + piece.sentence.text)

    async def tell_audio(self, utterance: Utterance, piece: Piece, data: bytes) -> None:
        response = self._responses[utterance.index]
        await self._of(response, "output_audio.delta", delta=base64.b64encode(data).decode())

    async def tell_words(self, utterance: Utterance, words: Sequence[Word]) -> None:
        for word in words:
            start, end = round(1000 * word.start), round(1000 * word.end)
            times = {"audio_offset_ms": start, "audio_duration_ms": end - start}
            about = {"text": word.text, "timestamp_type": "word", **times}
            await self._of(self._responses[utterance.index], "audio_timestamp.delta", **about)

    async def tell_done(self, utterance: Utterance) -> None:
        await self._tell_end_of(utterance)

    async def _tell_end_of(self, utterance: Utterance) -> None:
        response = self._responses.pop(utterance.index)
        if response.begun:
            if response.words is not None:
                await self._of(response, "audio_timestamp.done")
            await self._of(response, "output_audio.done")
            await self._of(response, "output_audio_transcript.done", transcript=response.text)
            part = {"type": "audio", "transcript": response.text}
            await self._of(response, "content_part.done", part=part)
            state = "completed" if response.status == "completed" else "incomplete"
            await self._of(response, "output_item.done", item=self._item(response, state))
        done = {**self._shown(response, response.status), "usage": usage(utterance.speech.info)}
        await self._tell("response.done", response=done)

    async def tell_failure(self, error: Exception, utterance: Utterance | None = None) -> None:
        detail = failure(error, self._id, self._settings.retry_after).body()["error"]
        shown = {**detail, "event_id": None}
        if utterance is not None:
            response = self._responses[utterance.index]
            response.status = "failed"
            response.error = {"type": detail["type"], "code": detail["code"], "message": detail["message"]}
        await self._tell("error", error=shown)

    def _described(self) -> dict[str, Any]:
        config = self._config
        voice = config.voice_name or self._settings.default_voice or None
        output = {"voice": voice, "speed": config.speed, "format": {"type": "audio/pcm", "rate": config.sample_rate}}
        if config.response_format in ("mulaw", "alaw"):
            output["format"] = {"type": "audio/pcmu" if config.response_format == "mulaw" else "audio/pcma"}
        about = {"type": "realtime", "object": "realtime.session", "id": self._session, "model": config.model}
        return {**about, "output_modalities": ["audio"], "audio": {"output": output}}

    def _item(self, response: _Response, status: str) -> dict[str, Any]:
        about = {"id": response.item, "object": "realtime.item", "type": "message", "status": status}
        begun = [{"type": "output_audio", "transcript": response.text}] if status != "in_progress" else []
        return {**about, "role": "assistant", "content": begun}

    def _shown(self, response: _Response, status: str) -> dict[str, Any]:
        over = status != "in_progress"
        details = None
        if status == "failed":
            details = {"type": "failed", "error": response.error}
        elif status == "cancelled":
            details = {"type": "cancelled", "reason": "client_cancelled"}
        about = {"id": response.id, "object": "realtime.response", "status": status, "status_details": details}
        output = [self._item(response, "completed" if status == "completed" else "incomplete")] if over else []
        return {**about, "output": output, "output_modalities": ["audio"], "usage": None}

    async def _of(self, response: _Response, kind: str, **values: Any) -> None:
        place = {"response_id": response.id, "item_id": response.item, "output_index": 0, "content_index": 0}
        await self._tell(f"response.{kind}", **place, **values)

    async def _tell(self, kind: str, **values: Any) -> None:
        await self.send_message({"type": kind, "event_id": f"event_{uuid.uuid4().hex[:24]}", **values})


def configure(websocket: WebSocket) -> dict[str, Any]:
    """Our fields of a new session."""
    model = family_of(websocket.query_params.get("model"), _OWN_MODELS)
    return {**_DEFAULT, **({"model": model} if model else {}), "streaming_mode": "sentence"}


@router.websocket("/v1/realtime")
async def realtime(websocket: WebSocket) -> None:
    """Read texts aloud."""
    await serve(websocket, lambda key: RealtimeSession(websocket, key, configure(websocket)))
