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
    streaming_mode: Literal["sentence", "token_level"] = "sentence"
    """`token_level`: the model reads the text as it is written, and speaks it in one piece. It waits where the text
    does. For models that can; granularity and pauses then have no effect, and stream_audio must be true."""
    flush_after_ms: Annotated[int, Field(ge=1, le=60_000)] | None = None
    """With token_level: a pause of the text so long, at the end of a sentence, ends the piece, and the model does not
    wait. The text behind it is a new piece, with the next sentence_index. Its audio is then not that of the whole
    text."""
    renew_after_ms: Annotated[int, Field(ge=1000, le=600_000)] | None = None
    """With token_level: a piece that is so long ends with its next sentence. Models speak faster and faster in a long
    one."""

    def check(self) -> str | None:
        token_level = self.streaming_mode == "token_level"
        if token_level and not self.stream_audio:
            return "streaming_mode token_level sends the audio as it is made; leave out stream_audio, or set it to true"
        if not token_level and (self.flush_after_ms or self.renew_after_ms):
            return "flush_after_ms and renew_after_ms belong to streaming_mode token_level"
        return super().check()


class InputText(Strict):
    """`input.text`: a piece of the text; it may end anywhere."""

    type: Literal["input.text"]
    text: InstanceOf[str]
    """A client that counts in UTF-16 may split a character, so halves of surrogate pairs are allowed."""


class InputFlush(Strict):
    """`input.flush`: speak what was written, without waiting for more of the sentence."""

    type: Literal["input.flush"]


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


ClientMessage = StreamConfig | InputText | InputFlush | InputDone | Cancel | Close
_ADAPTER: TypeAdapter[ClientMessage] = TypeAdapter(Annotated[ClientMessage, Field(discriminator="type")])
_KINDS = ("session.config", "input.text", "input.flush", "input.done", "cancel", "session.close")


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
