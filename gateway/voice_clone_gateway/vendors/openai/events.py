"""The messages of a client of the Realtime API, with those fields that say what to read aloud, and how."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from voice_clone_client.errors import quoted

from ...http.errors import HTTPFailure
from ...schemas import Name, Strict, VoiceId

_FORMATS = {
    "audio/pcm": ("pcm", 24000),
    "audio/pcmu": ("mulaw", 8000),
    "audio/pcma": ("alaw", 8000),
    # Names of versions before September 2025.
    "pcm16": ("pcm", 24000),
    "g711_ulaw": ("mulaw", 8000),
    "g711_alaw": ("alaw", 8000),
}


_DAY = 24 * 3600 * 1000  # milliseconds, more than a response lasts

_OWN = ("loudness", "language", "input_type", "inline_pauses", "normalize", "pronunciations")


class _Part(Strict):
    model_config = ConfigDict(extra="ignore")


class Format(_Part):
    """The format of the audio."""

    type: str = "audio/pcm"


_Timestamps = list[Literal["word"]] | None


class Output(_Part):
    """How the answer sounds."""

    voice: Name | VoiceId | None = None
    speed: float | None = None
    loudness: float | None = None
    """In LUFS. OpenAI has neither this field nor those of `TextOptions`, which are ours, too."""
    language: str | None = None
    input_type: str | None = None
    inline_pauses: bool | None = None
    normalize: str | None = None
    pronunciations: list[Any] | None = None
    format: Format | str | None = None
    output_audio_timestamp_types: _Timestamps = None
    """`["word"]`: tell when words are spoken. It is Azure's, as are the events."""


class Audio(_Part):
    output: Output | None = None


class Speaking(_Part):
    """What a session and a response have in common."""

    audio: Audio | None = None
    voice: Name | VoiceId | None = None
    output_audio_format: str | None = None
    output_audio_timestamp_types: _Timestamps = None
    speed: float | None = None

    def values(self) -> dict[str, Any]:
        """Return the given values under the names of our fields.

        Raises:
            HTTPFailure: there is no such format.
        """
        output = (self.audio and self.audio.output) or Output()
        form = output.format.type if isinstance(output.format, Format) else output.format or self.output_audio_format
        voice = output.voice or self.voice
        name = voice.id if isinstance(voice, VoiceId) else voice
        values: dict[str, Any] = {"voice": name, "speed": output.speed or self.speed}
        values |= {own: getattr(output, own) for own in _OWN}
        given = (output.output_audio_timestamp_types, self.output_audio_timestamp_types)
        values["timestamp_granularities"] = next((each for each in given if each is not None), None)
        if form is not None:
            if form not in _FORMATS:
                message = f"format: {quoted(form)} is none of {', '.join(_FORMATS)}"
                raise HTTPFailure(400, message, "invalid_value", param="session.audio.output.format")
            values["response_format"], values["sample_rate"] = _FORMATS[form]
        return {name: value for name, value in values.items() if value is not None}


class Content(_Part):
    type: str = "input_text"
    text: str | None = None


class Item(_Part):
    """A message of the conversation."""

    id: str | None = None
    type: str = "message"
    role: str = "user"
    content: list[Content] = Field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(part.text or "" for part in self.content)


class Response(Speaking):
    """How a response sounds, and the messages that it reads aloud."""

    input: list[Item] | None = None


class Event(_Part):
    """A message of a client."""

    type: str
    event_id: str | None = None
    session: Speaking | None = None
    item: Item | None = None
    response: Response | None = None
    response_id: str | None = None
    item_id: str | None = None
    audio_end_ms: Annotated[int, Field(ge=0, le=_DAY)] | None = None
