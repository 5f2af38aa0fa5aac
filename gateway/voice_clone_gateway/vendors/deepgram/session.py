"""The protocol of Deepgram's WebSocket `/v1/speak`: one text after another, in one voice.

From the client

    Speak     text: more of the text; it is spoken while it comes.
    Flush     the text is complete: the rest of it is spoken.
    Clear     stop at once; what was not spoken is dropped.
    Close     speak what was flushed, then close. Text without a Flush is dropped.

To the client

    Metadata  request_id, model_name, model_version, model_uuid: the first message.
    binary    audio.
    Flushed   sequence_id: all audio of the text before a Flush was sent.
    Cleared   sequence_id: the answer to Clear. No audio of earlier texts follows it.
    Warning   description, code: what of the options was ignored or replaced.
    Error     description, code; then the connection is closed, with 1008 or, if the server is at fault, 1011.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from fastapi import WebSocket
from pydantic import Field, InstanceOf, TypeAdapter, ValidationError
from voice_clone_client import __version__

from ...http.errors import HTTPFailure
from ...http.keys import Key
from ...live.config import StreamConfig
from ...live.utterance import Piece, Utterance
from ...services import services_of
from ..orders import Lenient
from ..session import Query, VendorSession, number
from .formats import format_of, uuid_of

C = TypeVar("C")
_ENCODINGS = ("linear16", "mulaw", "alaw")


class Speak(Lenient):
    """A piece of the text."""

    type: Literal["Speak"]
    text: InstanceOf[str]


class Control(Lenient):
    """A message without a value."""

    type: Literal["Flush", "Clear", "Close"]


_MESSAGE: TypeAdapter[Speak | Control] = TypeAdapter(Annotated[Speak | Control, Field(discriminator="type")])


def configure(websocket: WebSocket) -> StreamConfig:
    """How a connection wants to be spoken to, by the query of its URL. `model` is the voice, as with
    Deepgram, unless `voice` is given.

    Raises:
        HTTPFailure, InvalidArgument: an option is unknown or invalid.
    """
    settings = services_of(websocket).settings
    query = Query(websocket.query_params)
    encoding = query.choose("encoding", _ENCODINGS, "linear16")
    spoken = format_of(encoding, query.choose("container", ("none", "wav"), "none"))
    rate, voice, model = number("sample_rate", query.take("sample_rate")), query.take("voice"), query.take("model")
    return query.config(
        settings,
        voice=voice or model,
        model=model if voice else None,
        response_format=spoken["response_format"],
        sample_rate=spoken["sample_rate"] if rate is None else rate,
        speed=number("speed", query.take("speed")),
    )


def command_of(messages: TypeAdapter[C], message: Any, others: str) -> C:
    """The command in a JSON value; `others`: the types beside Speak.

    Raises:
        HTTPFailure: it has none.
    """
    try:
        return messages.validate_python(message)
    except ValidationError:
        text = f"a message is a JSON object whose type is Speak, with text, or {others}"
        raise HTTPFailure(400, text, "invalid_argument", param="type") from None


class DeepgramSession(VendorSession):
    """A session of this protocol. The text before each Flush is an utterance."""

    def __init__(self, websocket: WebSocket, key: Key, config: StreamConfig) -> None:
        super().__init__(websocket, key, config)
        self._sequence = 0

    async def greet(self) -> None:
        await self.send_message({"type": "Metadata", **self.about, "model_uuid": uuid_of(self.about["model_name"])})

    @property
    def about(self) -> dict[str, str]:
        name = self._config.voice_name or self._settings.default_voice
        return {"request_id": self._id, "model_name": name, "model_version": __version__}

    async def follow(self, message: Any) -> None:
        command = command_of(_MESSAGE, message, "Flush, Clear or Close")
        if isinstance(command, Speak):
            await self.write(command.text, self._config)
        elif command.type == "Flush":
            self.end(self._config)
        elif command.type == "Clear":
            await self.stop()
            await self._tell_in_sequence("Cleared")
        else:
            await self.finish()

    async def tell_audio(self, utterance: Utterance, piece: Piece, data: bytes) -> None:
        await self.send_binary(data)

    async def tell_end_of(self, utterance: Utterance) -> None:
        await self._tell_in_sequence("Flushed")

    async def tell_warning(self, utterance: Utterance, text: str) -> None:
        # Deepgram's own client reads the first two, LiveKit's and Pipecat's plugins the last
        await self.send_message({"type": "Warning", "description": text, "code": "replaced", "warn_msg": text})

    async def tell_error(self, message: str, code: str, close_code: int, utterance: Utterance | None) -> None:
        await self.send_message({"type": "Error", "description": message, "code": code})

    async def _tell_in_sequence(self, kind: str) -> None:
        self._sequence += 1
        await self.send_message({"type": kind, "sequence_id": self._sequence - 1})
