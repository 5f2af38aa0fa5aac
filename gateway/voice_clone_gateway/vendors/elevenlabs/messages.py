"""The options and messages of ElevenLabs' WebSockets; `session` describes their protocols."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import WebSocket
from pydantic import AliasChoices, ConfigDict, Field, InstanceOf
from voice_clone_text.languages import language_of

from ...live.config import StreamConfig
from ...schemas import MOST_DICTIONARIES, Name, Speed, Strict
from ...services import services_of
from ..orders import family_of
from ..session import Query, TaggedConfig, number, refused
from .speech_schemas import DEFAULT_FORMAT, OWN_MODELS, Locator, format_of, normalize_of

_NO_EFFECT = ("enable_logging", "sync_alignment", "auto_mode", "optimize_streaming_latency")  # on what is heard
_BOOLEANS = ("true", "false")


class SocketVoiceSettings(Strict):
    """Only the speed has an effect."""

    model_config = ConfigDict(extra="ignore")

    stability: float | None = None
    similarity_boost: float | None = None
    style: float | None = None
    use_speaker_boost: bool | None = None
    speed: Speed | None = None

    def ignored(self) -> list[str]:
        """The names of those that are given without an effect."""
        return sorted(name for name in self.model_fields_set if name != "speed" and getattr(self, name) is not None)


class Message(Strict):
    """What messages of all their protocols may have. New fields of theirs are ignored."""

    model_config = ConfigDict(extra="ignore")

    flush: bool | None = None
    voice_settings: SocketVoiceSettings | None = None
    pronunciation_dictionary_locators: Annotated[list[Locator], Field(max_length=MOST_DICTIONARIES)] | None = None
    context_id: Annotated[str, Field(max_length=128)] | None = Field(
        None, validation_alias=AliasChoices("context_id", "contextId")
    )
    close_context: bool | None = None
    close_socket: bool | None = None
    xi_api_key: str | None = Field(None, validation_alias=AliasChoices("xi_api_key", "xi-api-key"))
    authorization: str | None = None

    @property
    def key(self) -> str | None:
        return self.xi_api_key or (self.authorization or "").removeprefix("Bearer ").strip() or None


class TextMessage(Message):
    """A message with a text of one voice."""

    meant_empty = frozenset(("text",))
    text: InstanceOf[str] | None = None
    try_trigger_generation: bool | None = None
    """Nothing: the text is spoken as it comes."""
    generation_config: dict[str, Any] | None = None
    """When to speak, in numbers of characters; nothing, as above."""
    generator_config: dict[str, Any] | None = None


class Line(Strict):
    """What a voice of a dialogue says."""

    model_config = ConfigDict(extra="ignore")

    text: InstanceOf[str]
    voice_id: Name
    new_turn: bool | None = None


class DialogueMessage(Message):
    """A message of a dialogue."""

    voices: Annotated[list[Name], Field(min_length=1, max_length=10)] | None = None
    inputs: list[Line] | None = None
    keep_alive: bool | None = None


def configure(websocket: WebSocket, voice_id: str | None) -> tuple[StreamConfig, float | None]:
    """How a connection wants to be spoken to, by its URL, and its time without a message in seconds.

    Raises:
        HTTPFailure, InvalidArgument: an option is unknown or invalid.
    """
    settings = services_of(websocket).settings
    query = Query(websocket.query_params)
    for name in _NO_EFFECT:
        query.take(name)
    marked_up = query.choose("enable_ssml_parsing", _BOOLEANS, "false") == "true"
    normalize = normalize_of(
        query.choose("apply_text_normalization", ("auto", "on", "off")),
        query.choose("apply_language_text_normalization", _BOOLEANS) == "true",
    )
    idle = number("inactivity_timeout", query.take("inactivity_timeout"))
    if idle is not None and idle < 1:
        raise refused("inactivity_timeout", "it must be at least 1")
    config = query.config(
        settings,
        TaggedConfig if marked_up else StreamConfig,
        input_type=None if marked_up else "text",
        normalize=normalize,
        voice=voice_id,
        model=family_of(query.take("model_id"), OWN_MODELS),
        language=language_of(query.take("language_code")),
        **format_of(query.take("output_format") or DEFAULT_FORMAT),
    )
    return config, idle
