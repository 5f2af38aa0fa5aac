"""The protocol of Deepgram's WebSocket `/v2/speak`: turns of a conversation, in one voice.

From the client

    Speak             text: more of the turn's text; it is spoken while it comes.
    Flush             the turn's text is complete: the rest of it is spoken.
    Interrupt         stop at once; what was not spoken is dropped. playback_offset: how much of the session's audio was
                      heard, in milliseconds.
    Configure         speed: of the turns that begin later.
    Close             speak what was flushed, then close. Text without a Flush is dropped.

To the client

    Connected         request_id, model_name, model_version, model_uuids: the first message.
    SpeechStarted     speech_id: the audio of a turn follows.
    binary            audio.
    SpeechMetadata    speech_id, audio_duration_ms, character counts: all audio of a turn was sent. Flushed follows it.
    SpeechInterrupted audio_played_ms, metadata and, to an offset, text_spoken and text_remaining: the answer
                      to Interrupt. No audio of earlier texts follows it.
    ConfigureSuccess, ConfigureFailure
    SessionMetadata   totals; then the connection is closed.
    Warning, Error    as in `session`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import WebSocket
from pydantic import Field, TypeAdapter

from ...http.keys import Key
from ...live.config import StreamConfig
from ...live.utterance import Piece, Utterance
from ..orders import Lenient
from .formats import uuid_of
from .session import DeepgramSession, Speak, command_of

_LEAST_SPEED, _MOST_SPEED = 0.5, 1.5


class Offset(Lenient):
    """How much audio was heard."""

    type: Literal["time_ms"] = "time_ms"
    value: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Milliseconds since the session began."""


class Interrupt(Lenient):
    """Stop at once."""

    type: Literal["Interrupt"]
    playback_offset: Offset | None = None


class Configure(Lenient):
    """How later turns are spoken."""

    type: Literal["Configure"]
    speed: Annotated[float, Field(strict=True, allow_inf_nan=False)] | None = None


class Control(Lenient):
    """A message without a value."""

    type: Literal["Flush", "Close"]


_MESSAGE: TypeAdapter[Speak | Interrupt | Configure | Control] = TypeAdapter(
    Annotated[Speak | Interrupt | Configure | Control, Field(discriminator="type")]
)


@dataclass
class Turn:
    """What is spoken between two Flushes."""

    utterance: Utterance
    speech_id: str
    text: str = ""
    begin: int = 0
    """Milliseconds of the session's audio before it."""

    @property
    def end(self) -> int:
        """The same with its own, as far as that was sent."""
        return self.begin + self.utterance.milliseconds(self.utterance.sent)

    def heard(self, milliseconds: float) -> int:
        """How many of its characters were spoken within so much of the session's audio."""
        seconds = max(0.0, milliseconds - self.begin) / 1000 * self.utterance.config.speed
        report = self.utterance.speech.report(min(seconds, self.utterance.sent))
        return report.characters if report.partial is None else report.partial.end

    def metadata(self) -> dict[str, Any]:
        """What was spoken of it."""
        return {
            "speech_id": self.speech_id,
            "audio_duration_ms": self.end - self.begin,
            "input_character_count": len(self.text),
            "billable_character_count": len(self.text),
            "controls_applied": {"pronunciations_applied": 0, "breaks_applied": 0, "pronunciation_warnings": 0},
        }


class TurnsSession(DeepgramSession):
    """A session of this protocol."""

    def __init__(self, websocket: WebSocket, key: Key, config: StreamConfig) -> None:
        super().__init__(websocket, key, config)
        self._turns: dict[int, Turn] = {}  # those that are not over, by their utterances
        self._latest: Turn | None = None  # that has audio, and was not interrupted
        self._before = 0  # milliseconds of audio that were heard before the latest interruption
        self._characters = 0  # of all turns that are over

    @property
    def _sent(self) -> int:
        return self._before if self._latest is None else self._latest.end

    async def greet(self) -> None:
        await self.send_message({"type": "Connected", **self.about, "model_uuids": [uuid_of(self.about["model_name"])]})

    async def follow(self, message: Any) -> None:
        command = command_of(_MESSAGE, message, "Flush, Interrupt, Configure or Close")
        if isinstance(command, Speak):
            await self._add(command.text)
        elif isinstance(command, Interrupt):
            await self._interrupt(command.playback_offset)
        elif isinstance(command, Configure):
            await self._configure(command.speed)
        elif command.type == "Close":
            await self.finish()
        elif self._open:
            self.end(self._config)
        else:
            await self._warn("NO_ACTIVE_SPEECH", "there is no text before this Flush")

    async def _add(self, text: str) -> None:
        await self.write(text, self._config)
        for utterance in self._open.values():
            if utterance.index not in self._turns:
                id = uuid.uuid5(uuid.NAMESPACE_OID, f"{self._id} {utterance.index}").hex[:12]
                self._turns[utterance.index] = Turn(utterance, f"dg_sp_{id}")
            self._turns[utterance.index].text += text

    async def _interrupt(self, offset: Offset | None) -> None:
        if offset is not None and offset.value <= self._before and self._before:
            text = f"playback_offset must be above {self._before}, where the last interruption was"
            await self._warn("INVALID_INTERRUPT_OFFSET", text)
            return
        turn, latest = next(iter(self._turns.values()), self._latest), self._latest
        if latest is not None and offset is not None and offset.value < latest.end:
            turn = latest
        if turn is None:
            await self._warn("NO_AUDIO_GENERATED", "nothing was spoken since the last interruption")
            return
        await self.stop()
        self._characters += sum(len(each.text) for each in self._turns.values())
        self._turns.clear()
        sent = self._sent
        if turn is not self._latest:  # its audio has not begun
            turn.begin = sent
        played = sent if offset is None else min(int(offset.value), sent)
        texts = {}
        if offset is not None:
            place = turn.heard(played)
            texts = {"text_spoken": turn.text[:place], "text_remaining": turn.text[place:]}
        self._before, self._latest = played, None
        said = {"audio_played_ms": played, **texts, "metadata": turn.metadata()}
        await self.send_message({"type": "SpeechInterrupted", **said})

    async def _configure(self, speed: float | None) -> None:
        if speed is not None and not _LEAST_SPEED <= speed <= _MOST_SPEED:
            text = f"speed is {_LEAST_SPEED} to {_MOST_SPEED}"
            said = {"code": "SPEED_OUT_OF_RANGE", "field": "speed", "value": speed, "description": text}
            await self.send_message({"type": "ConfigureFailure", **said})
            return
        if speed is not None:
            self._config = self._config.model_copy(update={"speed": float(speed)})
        await self.send_message({"type": "ConfigureSuccess", "applied": {"speed": self._config.speed}})

    async def tell_start(self, utterance: Utterance, piece: Piece) -> None:
        turn = self._turns[utterance.index]
        if turn is not self._latest:
            turn.begin, self._latest = self._sent, turn
            await self.send_message({"type": "SpeechStarted", "speech_id": turn.speech_id})

    async def tell_end_of(self, utterance: Utterance) -> None:
        turn = self._turns.pop(utterance.index)
        self._characters += len(turn.text)
        await self.send_message({"type": "SpeechMetadata", **turn.metadata()})
        await self.send_message({"type": "Flushed", "speech_id": turn.speech_id})

    async def tell_end_of_session(self) -> None:
        totals = {
            "total_audio_duration_ms": self._sent,
            "total_input_character_count": self._characters,
            "total_billable_character_count": self._characters,
        }
        await self.send_message({"type": "SessionMetadata", **totals})

    async def _warn(self, code: str, text: str) -> None:
        await self.send_message({"type": "Warning", "code": code, "description": text, "warn_msg": text})
