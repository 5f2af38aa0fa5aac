"""The messages of a WebSocket client; `websocket` describes the protocol."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import Field, InstanceOf, TypeAdapter, ValidationError

from ..http.errors import HTTPFailure
from ..http.json_bounds import JsonBounds
from ..long_text.sentences import Granularity
from ..schemas import FormatName, SpeechOptions, Strict

_PIECE = 64 << 10  # bytes that are checked at once
_Pause = Annotated[int, Field(ge=0, le=10_000)]


class StreamConfig(SpeechOptions):
    """`session.config`: how later texts are spoken. All fields of a speech request except its text, and these."""

    type: Literal["session.config"]
    response_format: FormatName = "pcm"
    """The audio's format, see POST /v1/audio/speech."""
    stream_audio: bool = True
    """True: the frames of an utterance are one continuous file, sent as it is made. False: each sentence is a complete
    file in one frame."""
    audio_frames: Literal["binary", "base64"] = "binary"
    """The form of the audio: binary frames, or base64 in `audio.chunk` messages."""
    split_granularity: Granularity = "sentence"
    """The unit that is spoken at once: a sentence, a clause, or the whole text before `input.done`."""
    sentence_pause_ms: _Pause = 0
    """Silence between sentences."""
    paragraph_pause_ms: _Pause = 0
    """Silence between paragraphs."""


class InputText(Strict):
    """`input.text`: a piece of the text; it may end anywhere."""

    type: Literal["input.text"]
    text: InstanceOf[str]
    """A client that counts in UTF-16 may split a character, so halves of surrogate pairs are allowed."""


class InputDone(Strict):
    """`input.done`: the utterance's text is complete; its rest is spoken."""

    type: Literal["input.done"]


class Cancel(Strict):
    """`cancel`: stop speaking."""

    type: Literal["cancel"]
    played_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """How much of the utterance's audio the client has played; the report then counts this, not the audio sent."""


class Close(Strict):
    """`session.close`: stop everything and close the connection."""

    type: Literal["session.close"]


ClientMessage = StreamConfig | InputText | InputDone | Cancel | Close
_ADAPTER: TypeAdapter[ClientMessage] = TypeAdapter(Annotated[ClientMessage, Field(discriminator="type")])
_KINDS = ("session.config", "input.text", "input.done", "cancel", "session.close")


async def read(text: str) -> ClientMessage:
    """The message in `text`; lets others run while it checks a long one.

    Raises:
        HTTPFailure, RequestValidationError: see `parse`; also a message beyond the bounds of `JsonBounds`.
    """
    bounds, data = JsonBounds(), text.encode("utf-8", "surrogatepass")
    for begin in range(0, len(data), _PIECE):
        bounds.feed(data[begin : begin + _PIECE])
        await asyncio.sleep(0)
    return parse(text)


def parse(text: str) -> ClientMessage:
    """The message in `text`.

    Raises:
        HTTPFailure: it has none.
        RequestValidationError: one of its fields is invalid.
    """
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise HTTPFailure(400, "the message is no JSON", "invalid_json") from None
    kind = values.get("type") if isinstance(values, dict) else None
    if kind not in _KINDS:
        message = f"a message is a JSON object whose type is one of {', '.join(_KINDS)}"
        raise HTTPFailure(400, message, "invalid_argument", param="type")
    try:
        return _ADAPTER.validate_python(values)
    except ValidationError as error:
        errors = [{**each, "loc": each["loc"][1:]} for each in error.errors(include_url=False)]  # without the type
        raise RequestValidationError(errors) from None
