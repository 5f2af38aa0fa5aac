"""The protocols of ElevenLabs' WebSockets for dialogues: `stream-input` for one, `multi-stream-input` for several.

From the client, each message an object:

    voices          in the first message of a dialogue: all that speak in it.
    inputs          lines, each `text` of a `voice_id`, spoken while they come. The lines of one voice in a row are one
                    turn, unless one of them says `new_turn`.
    flush           speak the text so far, without waiting for more.
    keep_alive      has no effect.
    voice_settings  in the first message of a dialogue: `speed`. The other settings have no effect.
    pronunciation_dictionary_locators  in the first message of a dialogue: kept dictionaries.
    context_id      which of several dialogues the message belongs to.
    close_context   the dialogue is complete; what it has is spoken.
    close_socket    the same for all dialogues; then the connection is closed.
    xi_api_key      in the first message, of clients that cannot send a header; also xi-api-key, authorization.

To the client, with context_id if there may be several dialogues:

    audio                    base64. alignment and normalized_alignment are null. Each turn is a file of its own.
    is_final_audio_for_turn  true: all audio of a turn was sent.
    is_final                 true: all audio of a dialogue was sent.
    error                    as in `session`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.websockets import WebSocketDisconnect
from voice_clone_client.errors import quoted

from ...live.config import StreamConfig
from ...live.utterance import Piece, Utterance
from ...speech.synthesis import check_options
from ..session import refused
from .messages import DialogueMessage, Line
from .session import ElevenLabsSession


@dataclass
class Dialogue:
    """A dialogue whose lines still come."""

    config: StreamConfig
    voices: Sequence[str]
    speaker: str | None = None
    """The voice of the latest line."""
    turn: StreamConfig = field(init=False)
    """The options with which that voice speaks."""

    def __post_init__(self) -> None:
        self.turn = self.config


class DialogueSession(ElevenLabsSession[DialogueMessage]):
    """One dialogue. Each turn is an utterance. An utterance without text marks the end of the dialogue."""

    messages = DialogueMessage

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._dialogues: dict[str, Dialogue] = {}  # by their lanes

    def lane(self, message: DialogueMessage) -> str:
        return ""

    def place(self, utterance: Utterance) -> dict[str, str]:
        return {}

    async def execute(self, message: DialogueMessage) -> None:
        lane = self.lane(message)
        self._register(lane, message)
        for line in message.inputs or ():
            await self._add(lane, line)
        if message.flush:
            self.flush(lane)
        for each in [*self._dialogues] if message.close_socket else [lane] if message.close_context else []:
            await self._close(each)
        if message.close_socket:
            await self.finish()

    async def tell_audio(self, utterance: Utterance, piece: Piece, data: bytes) -> None:
        audio = {"audio": base64.b64encode(data).decode(), "alignment": None, "normalized_alignment": None}
        await self.send_message({**audio, **self.place(utterance)})

    async def tell_end_of(self, utterance: Utterance) -> None:
        end = "is_final_audio_for_turn" if utterance.speech.length else "is_final"
        await self.send_message({end: True, **self.place(utterance)})

    def _register(self, lane: str, message: DialogueMessage) -> None:
        """Begin a dialogue with the first message about it.

        Raises:
            HTTPFailure: too many are open, or the message lacks the voices, or the dialogue has them already.
        """
        if message.voices is None:
            if message.inputs and lane not in self._dialogues:
                raise refused("voices", "the first message of a dialogue must list the voices that speak in it")
        elif lane in self._dialogues:
            raise refused("voices", "they belong to the first message of a dialogue; this one is open already")
        else:
            config = self.configured(message, len(self._dialogues))
            self._dialogues[lane] = Dialogue(config, message.voices)

    async def _add(self, lane: str, line: Line) -> None:
        """Speak a line, in the turn of its voice or a new one."""
        dialogue = self._dialogues[lane]
        if line.voice_id not in dialogue.voices:
            raise refused("voice_id", f"{quoted(line.voice_id)} is none of the dialogue's voices")
        if line.new_turn or line.voice_id != dialogue.speaker:
            self._end_turn(lane, dialogue)
            dialogue.speaker = line.voice_id
            dialogue.turn = dialogue.config.model_copy(update={"voice": line.voice_id})
            check_options(self._settings, dialogue.turn)
        if lane not in self._open:
            await self._room()
        await self.write(line.text, dialogue.turn, lane)

    async def _close(self, lane: str) -> None:
        """End a dialogue, if it is open."""
        dialogue = self._dialogues.pop(lane, None)
        if dialogue is not None:
            self._end_turn(lane, dialogue)
            await self._room()
            self.end(dialogue.config, lane)

    def _end_turn(self, lane: str, dialogue: Dialogue) -> None:
        if lane in self._open:
            self.end(dialogue.turn, lane)

    async def _room(self) -> None:
        """Wait until there is room for another turn.

        Raises:
            WebSocketDisconnect: the client has left, or the connection was closed.
        """
        while len(self._utterances) >= self._settings.session_utterances:
            waiting = {each.task: each for each in self._utterances if each.task is not None}
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not all(waiting[task].over for task in done):
                raise WebSocketDisconnect  # it came while no message was awaited


class DialoguesSession(DialogueSession):
    """Several dialogues, each in a context."""

    def lane(self, message: DialogueMessage) -> str:
        if message.context_id is None and not message.close_socket:
            raise refused("context_id", "a message must say to which dialogue it belongs")
        return message.context_id or ""

    def place(self, utterance: Utterance) -> dict[str, str]:
        return {"context_id": utterance.lane}
