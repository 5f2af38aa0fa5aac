"""The fields and the answers of ElevenLabs' API for speech, and the fields that we have for them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from voice_clone_client.errors import quoted
from voice_clone_text.languages import language_of

from ...audio import Encoder
from ...http.errors import HTTPFailure
from ...schemas import MOST_DICTIONARIES, Name, Speed
from ...speech.forms import Form
from ..orders import Lenient, family_of
from .alignment import CharacterTimes

CLIENT_HEADER = "xi-api-key"
OWN_MODELS = ("eleven_",)
DEFAULT_FORMAT = "mp3_44100_128"
FIELDS = {
    "input": "text",
    "voice": "voice_id",
    "model": "model_id",
    "language": "language_code",
    "pronunciations": "pronunciation_dictionary_locators",
}
"""ElevenLabs' names of our fields."""

_FORMATS = {"mp3": "mp3", "pcm": "pcm", "wav": "wav", "opus": "opus", "ulaw": "mulaw", "alaw": "alaw"}
_NO_EFFECT = ("previous_text", "next_text", "previous_request_ids", "next_request_ids", "future_text")


class VoiceSettings(Lenient):
    """Only the speed has an effect, because the models here have nothing that the other settings change."""

    speed: Speed | None = None


class Locator(Lenient):
    """Names a dictionary of pronunciations."""

    pronunciation_dictionary_id: Name
    version_id: Name | None = None


class Speaking(Lenient):
    """The fields that all calls for speech have."""

    model_id: str | None = None
    language_code: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    voice_settings: VoiceSettings | None = None
    apply_text_normalization: Literal["auto", "on", "off"] | None = None
    apply_language_text_normalization: bool | None = None
    settings: VoiceSettings | None = None
    """The name that dialogues have for `voice_settings`."""
    pronunciation_dictionary_locators: Annotated[list[Locator], Field(max_length=MOST_DICTIONARIES)] | None = None
    audio_effects: Annotated[list[Any], Field(max_length=0)] | None = None
    """There are no effects here."""

    def values(self, output_format: str) -> dict[str, Any]:
        """Return the given values under the names of our fields, without text and voice.

        Raises:
            HTTPFailure: there is no such format.
        """
        settings = self.voice_settings or self.settings
        return {
            **format_of(output_format),
            "model": family_of(self.model_id, OWN_MODELS),
            "language": language_of(self.language_code),
            "seed": self.seed,
            "speed": None if settings is None else settings.speed,
            "pronunciations": pronunciations_of(self.pronunciation_dictionary_locators),
            "normalize": normalize_of(self.apply_text_normalization, bool(self.apply_language_text_normalization)),
        }

    def ignored(self) -> list[str]:
        """Return the names of the given fields that have no effect, though a caller could expect one."""
        return [name for name in self.unused() if name in _NO_EFFECT]


def pronunciations_of(locators: Sequence[Locator] | None) -> list[dict[str, str | None]]:
    """Our field for the dictionaries that are named."""
    return [{"dictionary": each.pronunciation_dictionary_id, "version": each.version_id} for each in locators or ()]


def normalize_of(text: str | None, language: bool) -> str | None:
    """Our field for `apply_text_normalization` and `apply_language_text_normalization`. `auto` leaves numbers to the
    models here, which read them."""
    return "on" if text == "on" or language else None


def format_of(text: str) -> dict[str, Any]:
    """Return our fields for a format such as `mp3_44100_128`: codec, Hz and kbit/s.

    Raises:
        HTTPFailure: there is no such format.
    """
    codec, *numbers = text.split("_")
    if codec in _FORMATS and 1 <= len(numbers) <= 2 and all(each.isascii() and each.isdigit() for each in numbers):
        rate, *bits = map(int, numbers)
        bit_rate = bits[0] * 1000 if bits else None
        return {"response_format": _FORMATS[codec], "sample_rate": rate, "bit_rate": bit_rate}
    message = f"output_format: {quoted(text)} is none; one is like mp3_44100_128, with {', '.join(_FORMATS)}"
    raise HTTPFailure(400, message, "invalid_output_format", param="output_format")


class Spoken(Form):
    """The bytes of a file, which are sent as they are made; a WAV is sent as a whole."""

    def __init__(self, characters: int, whole: bool = False) -> None:
        super().__init__(whole)
        self._characters = characters

    def headers(self, request_id: str) -> Mapping[str, str]:
        return {"request-id": request_id, "character-cost": str(self._characters)}


class Timed(Spoken):
    """Lines of JSON, each an object with a piece of the file in base64 and the times of its characters.

    A line of a stream has the characters whose times are known since the line before; the last one has the rest, and no
    audio. Both alignments are of the text as the caller wrote it.
    """

    def __init__(self, text: str, whole: bool = False, characters: int | None = None) -> None:
        super().__init__(len(text) if characters is None else characters, whole)
        self.timed = True
        self._times = CharacterTimes(text)
        self.more: Callable[[], Mapping[str, Any]] = dict
        """Makes the further fields of an object."""

    def media_type(self, encoder: Encoder) -> str:
        return "application/json"

    def piece(self, encoder: Encoder, index: int, data: bytes) -> bytes:
        return self._line(data, last=self.whole)

    def end(self, info: Mapping[str, Any], warnings: Sequence[str]) -> bytes:
        return b"" if self.whole else self._line(b"", last=True)

    def _line(self, data: bytes, last: bool) -> bytes:
        found = self._times.take(self.known(), last)
        times = found.seconds() if found.characters else None
        alignment = {"alignment": times, "normalized_alignment": times}
        line = {"audio_base64": base64.b64encode(data).decode(), **alignment, **self.more()}
        return json.dumps(line).encode() + b"\n"
