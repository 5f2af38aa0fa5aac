"""The options and messages of ElevenLabs' WebSockets; `elevenlabs_session` describes their protocols."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import WebSocket
from pydantic import AliasChoices, Field, InstanceOf, ValidationError

from ..http.errors import HTTPFailure, validation_failure
from ..schemas import Strict
from ..settings import Settings
from .config import StreamConfig
from .vendor import Query, number, refused

_FORMATS = {"pcm": "pcm", "mp3": "mp3", "ulaw": "mulaw", "alaw": "alaw", "opus": "opus"}
_FALSE = ("false",)
_EITHER = ("true", "false")
_NOTHING = {  # options that ask for nothing that would change the audio, with such values
    "enable_logging": _EITHER,
    "sync_alignment": _EITHER,
    "auto_mode": _EITHER,
    "enable_ssml_parsing": _FALSE,
    "apply_text_normalization": ("auto", "off"),
    "apply_language_text_normalization": _FALSE,
    "optimize_streaming_latency": ("0", "1", "2", "3", "4"),
}


class VoiceSettings(Strict):
    """Only the speed has an effect."""

    stability: float | None = None
    similarity_boost: float | None = None
    style: float | None = None
    use_speaker_boost: bool | None = None
    speed: Annotated[float, Field(ge=0.25, le=4.0, allow_inf_nan=False)] | None = None

    def ignored(self) -> list[str]:
        """The names of those that are given without an effect."""
        return sorted(name for name in self.model_fields_set if name != "speed" and getattr(self, name) is not None)


class Message(Strict):
    """A message of a client."""

    meant_empty = frozenset(("text",))
    text: InstanceOf[str] | None = None
    flush: bool | None = None
    try_trigger_generation: bool | None = None
    """Nothing: the text is spoken as it comes."""
    voice_settings: VoiceSettings | None = None
    generation_config: dict[str, Any] | None = None
    """When to speak, in numbers of characters; nothing, as above."""
    generator_config: dict[str, Any] | None = None
    pronunciation_dictionary_locators: Annotated[list[Any], Field(max_length=0)] | None = None
    """There are no dictionaries here."""
    context_id: Annotated[str, Field(max_length=128)] | None = Field(
        None, validation_alias=AliasChoices("context_id", "contextId")
    )
    close_context: bool | None = None
    close_socket: bool | None = None
    xi_api_key: str | None = Field(None, validation_alias=AliasChoices("xi_api_key", "xi-api-key"))
    authorization: str | None = None

    @property
    def key(self) -> str | None:
        """The key that it presents."""
        return self.xi_api_key or (self.authorization or "").removeprefix("Bearer ").strip() or None


def parse(value: Any) -> Message:
    """The message in a JSON value.

    Raises:
        HTTPFailure: it has none.
    """
    if not isinstance(value, dict):
        raise HTTPFailure(400, "a message is a JSON object", "invalid_argument")
    try:
        return Message.model_validate(value)
    except ValidationError as error:
        raise validation_failure(error.errors(include_url=False), Message.model_fields) from None


def configure(websocket: WebSocket, voice_id: str) -> tuple[StreamConfig, float | None]:
    """How a connection wants to be spoken to, by its URL, and its time without a message in seconds.

    Raises:
        HTTPFailure, InvalidArgument: an option is unknown or invalid.
    """
    settings: Settings = websocket.app.state.settings
    query = Query(websocket.query_params)
    for name, values in _NOTHING.items():
        query.choose(name, values)
    codec, _, rest = (query.take("output_format") or "mp3_44100_128").partition("_")
    if codec not in _FORMATS:
        raise refused("output_format", f"this gateway has {', '.join(_FORMATS)}, not {codec!r}")
    model = query.take("model_id")
    idle = number("inactivity_timeout", query.take("inactivity_timeout"))
    if idle is not None and idle < 1:
        raise refused("inactivity_timeout", "it must be at least 1")
    config = query.config(
        settings,
        voice=voice_id,
        model=None if model is None or model.startswith("eleven_") else model,
        language=query.take("language_code"),
        response_format=_FORMATS[codec],
        sample_rate=number("output_format", rest.partition("_")[0]),
    )
    return config, idle
