"""Their fields of a speech, and ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import HTTPConnection
from voice_clone_client.errors import quoted
from voice_clone_client.types import NEUTRAL
from voice_clone_text.languages import language_of
from voice_clone_words.words import Word

from ...http.errors import HTTPFailure
from ..orders import Lenient, family_of
from ..registering import plain_name
from ..session import refused

VERSION_HEADER = "cartesia-version"
FIELDS = {
    "input": "transcript",
    "voice": "voice",
    "model": "model_id",
    "sample_rate": "output_format.sample_rate",
    "bit_rate": "output_format.bit_rate",
    "speed": "generation_config.speed",
    "style": "generation_config.emotion",
    "pronunciations": "pronunciation_dict_id",
}
"""Their names of our fields."""
OWN_MODELS = ("sonic",)
_SPEEDS = {"slow": 0.8, "normal": 1.0, "fast": 1.2}
_ENCODINGS = {"pcm_f32le": "f32", "pcm_s16le": "", "pcm_mulaw": "mulaw", "pcm_alaw": "alaw"}
_RAW = {"f32": "pcm_f32", "": "pcm"}  # the others have one name
_NO_EFFECT = ("add_phoneme_timestamps", "duration", "save")


class VoiceId(Lenient):
    """A voice."""

    mode: str | None = None
    id: str | None = None


class OutputFormat(Lenient):
    """A format of audio."""

    container: Literal["raw", "wav", "mp3"]
    encoding: str | None = None
    sample_rate: int
    bit_rate: int | None = None

    def values(self) -> dict[str, Any]:
        """Our fields.

        Raises:
            HTTPFailure: there is no such encoding.
        """
        if self.container == "mp3":
            return {"response_format": "mp3", "sample_rate": self.sample_rate, "bit_rate": self.bit_rate}
        if self.encoding not in _ENCODINGS:
            text = f"{quoted(self.encoding or '')} is none; it must be one of {', '.join(_ENCODINGS)}"
            raise refused("output_format.encoding", text)
        name = _ENCODINGS[self.encoding]
        wav = f"wav_{name}" if name else "wav"
        return {
            "response_format": wav if self.container == "wav" else _RAW.get(name, name),
            "sample_rate": self.sample_rate,
        }


class GenerationConfig(Lenient):
    """Only these have an effect."""

    speed: float | None = None
    emotion: str | None = None
    """The voice's style of that name, if it has one."""


class Generation(Lenient):
    """What is to be spoken, and how."""

    transcript: str
    model_id: str | None = None
    voice: str | VoiceId
    output_format: OutputFormat
    language: str | None = None
    locale: str | None = None
    generation_config: GenerationConfig | None = None
    speed: Literal["slow", "normal", "fast"] | None = None
    normalization: str | None = None
    """`auto` leaves numbers to the models here; a locale asks for words."""
    pronunciation_dict_id: str | None = None
    """A kept dictionary."""
    context_id: Annotated[str, Field(max_length=128)] | None = None
    add_timestamps: bool | None = None
    """Where there are events: tell when the words are spoken, as the caller wrote them."""

    @property
    def voice_id(self) -> str:
        """Id or name of the voice.

        Raises:
            HTTPFailure: it is none, but an embedding.
        """
        id = self.voice if isinstance(self.voice, str) else self.voice.id
        if not id:
            text = "it must have an id; an embedding is of another model, so clone the voice with POST /voices/clone"
            raise refused("voice", text)
        return id

    def values(self) -> dict[str, Any]:
        """Our fields, without text and voice.

        Raises:
            HTTPFailure: a field has a value that cannot be followed.
        """
        dictionary = self.pronunciation_dict_id
        config = self.generation_config
        locale = None if self.normalization in ("auto", "off") else self.normalization
        speed = _SPEEDS.get(self.speed or "") if config is None or config.speed is None else config.speed
        return {
            **self.output_format.values(),
            "model": family_of(self.model_id, OWN_MODELS),
            "language": language_of(self.language or self.locale or locale),
            "normalize": "on" if locale else None,
            "pronunciations": [{"dictionary": dictionary}] if dictionary else None,
            "speed": speed,
            "style": None if config is None or not config.emotion else f"{plain_name(config.emotion)},{NEUTRAL}",
        }

    def ignored(self) -> list[str]:
        """What has no effect, though a caller could expect one."""
        config = [] if self.generation_config is None else self.generation_config.unused()
        voice = [] if isinstance(self.voice, str) else self.voice.unused()
        extra = self.model_extra or {}
        return [*(name for name in _NO_EFFECT if extra.get(name)), *config, *voice]


def timestamps_of(words: Sequence[Word]) -> dict[str, Any]:
    """The fields of an event that tells when words are spoken."""
    starts, ends = [round(word.start, 4) for word in words], [round(word.end, 4) for word in words]
    return {"word_timestamps": {"words": [word.text for word in words], "start": starts, "end": ends}}


def version_of(connection: HTTPConnection) -> str | None:
    """The version of the API that a client speaks, a date; None if it does not say it."""
    return connection.headers.get(VERSION_HEADER) or connection.query_params.get("cartesia_version")


def error_of(failed: HTTPFailure, request_id: str) -> dict[str, Any]:
    """The fields of an error."""
    detail = failed.body()["error"]
    return {
        "error_code": detail["code"],
        "title": detail["code"].replace("_", " ").capitalize(),
        "message": detail["message"],
        "request_id": request_id,
        "doc_url": None,
    }


def has_text_errors(connection: HTTPConnection) -> bool:
    """Whether a client is so old that it takes an error for a text."""
    return (version_of(connection) or _OBJECTS_SINCE) < _OBJECTS_SINCE


_OBJECTS_SINCE = "2026-03-01"
