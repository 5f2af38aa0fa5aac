"""The JSON of the requests. An unknown field is an error, as is a value of another type."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from voice_clone_client.types import MAX_NAME
from voice_clone_sound import MAX_LOUDNESS, MAX_SPEED, MIN_LOUDNESS, MIN_SPEED
from voice_clone_text.pieces import Style

from .compatibility import translate
from .fields import Knobs

MAX_EMBEDDING = 8192  # values of a speaker embedding; the server knows the exact number
MAX_OPTIONS_BYTES = 4096  # of the JSON of a family's options
MAX_OPTIONS_DEPTH = 8  # objects and lists within each other


MOST_TURNS = 1000  # of a request
MOST_PRONUNCIATIONS = 1000  # of a request
MOST_DICTIONARIES = 3  # that a request names

InputType = Literal["auto", "text", "ssml", "script"]
Normalize = Literal["off", "on", "numbers"]
FormatName = Literal[
    "wav", "pcm", "flac", "mp3", "opus", "aac", "mulaw", "alaw", "pcm_f32", "wav_mulaw", "wav_alaw", "wav_f32"
]
SampleRate = Literal[8000, 16000, 22050, 24000, 32000, 44100, 48000]
# The empty constraint makes pydantic check the text, which refuses the lone surrogates that JSON can hold.
Text = Annotated[str, Field(min_length=0)]
Name = Annotated[str, Field(max_length=MAX_NAME)]
Embedding = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1, max_length=MAX_EMBEDDING)]


def _with_nulls(schema: dict[str, Any]) -> None:
    """Say in the OpenAPI description, too, that a field that need not be there may be null."""
    for name, field in schema.get("properties", {}).items():
        kinds = field.get("anyOf", [field])
        if name in schema.get("required", ()) or {"type": "null"} in kinds:
            continue
        about = {key: field.pop(key) for key in ("title", "description", "default") if key in field}
        schema["properties"][name] = {"anyOf": [*field.get("anyOf", [field]), {"type": "null"}], **about}


class Strict(BaseModel):
    """A JSON object without unknown fields and without conversions. A field that need not be there may be null or an
    empty text: that is as if it were not there."""

    meant_empty: ClassVar[frozenset[str]] = frozenset()
    """The fields that need not be there, but whose empty text means something."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, json_schema_extra=_with_nulls)

    @model_validator(mode="before")
    @classmethod
    def _drop_nothings(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        empty = optional - cls.meant_empty
        return {
            name: value
            for name, value in values.items()
            if not ((value is None and name in optional) or (value == "" and name in empty))
        }


def _without_input(schema: dict[str, Any]) -> None:
    """As `_with_nulls`; segments take the place of `input`, which may then be empty."""
    del schema["properties"]["input"]["minLength"]
    schema["required"] = [name for name in schema.get("required", ()) if name != "input"]
    _with_nulls(schema)
    if not schema["required"]:
        del schema["required"]


class VoiceId(Strict):
    """A voice as an object, a form of newer OpenAI clients."""

    id: Name


class Voiced(Strict):
    """What may name a registered voice, in either form."""

    voice: Name | VoiceId | None = None

    @field_validator("voice", mode="before")
    @classmethod
    def _check_voice(cls, value: Any) -> Any:
        """One message instead of pydantic's one for each form of a voice."""
        name = value["id"] if isinstance(value, dict) and [*value] == ["id"] else value
        if not isinstance(name, str) and (name is not None or value is not None):
            raise PydanticCustomError("voice", 'it must be the name of a voice, or {"id": NAME}')
        if name is not None and len(name) > MAX_NAME:
            raise PydanticCustomError("voice", "it should have at most {most} characters", {"most": MAX_NAME})
        return value if name else None  # OpenAI's clients must send a voice: an empty one is none

    @property
    def voice_name(self) -> str | None:
        """The name of the registered voice."""
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice


Speed = Annotated[float, Field(ge=MIN_SPEED, le=MAX_SPEED, allow_inf_nan=False)]
Instructions = Annotated[str, Field(max_length=4096)]


class SpeechOptions(Voiced, Knobs):
    """All fields of a speech except its text."""

    model: Name | None = None
    """One of /v1/models; by default the first of them."""
    voice: Name | VoiceId | None = None
    """A registered voice, or an alias of one. At most one of voice, reference_audio, speaker_embedding and
    voice_prompt; without any, a model that can speaks without a voice, else the gateway's default voice speaks. Another
    name: speaker."""
    reference_audio: Text | None = None
    """A clip of 1 to 30 s as `data:audio/...;base64,` URL, or the http(s) URL of one. Another name: ref_audio."""
    reference_text: Text | None = None
    """The words spoken in reference_audio; with them the voice is cloned in context, else by its speaker embedding
    alone. Another name: ref_text."""
    x_vector_only: bool | None = None
    """True clones by the speaker embedding alone, false requires in-context cloning. Another name:
    x_vector_only_mode."""
    speaker_embedding: Embedding | None = None
    """A speaker embedding of the model's size."""
    voice_prompt: Text | None = None
    """A bundle of one voice in base64, as GET /v1/audio/voices/{name}/export answers it. The voice speaks as it would
    where it is registered; nothing is extracted, and nothing of it is kept."""
    response_format: FormatName = "mp3"
    """The audio's format. `pcm` is signed 16-bit little-endian, `pcm_f32` 32-bit float; `mulaw` and `alaw` have no
    header and by default 8000 Hz. Each of the last three is also a WAV file: `wav_f32`, `wav_mulaw`, `wav_alaw`."""
    sample_rate: SampleRate | None = None
    """Hz; by default the model's own, or the nearest one that the format supports."""
    bit_rate: Annotated[int, Field(ge=32_000, le=192_000)] | None = None
    """Bits a second of mp3, opus and aac, of which the codec takes the nearest it has; other formats ignore it."""
    speed: Speed = 1.0
    """Factor of the tempo; the pitch is unchanged."""
    loudness: Annotated[float, Field(ge=MIN_LOUDNESS, le=MAX_LOUDNESS, allow_inf_nan=False)] | None = None
    """LUFS that the voice is to have: one gain for all its speech, with true peaks of at most -1 dBTP."""
    instructions: Instructions | None = None
    """How to speak, in words, for a model that follows such instructions. Others ignore them, with a warning; a strict
    gateway refuses them there."""
    initial_codec_chunk_frames: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """vLLM-Omni's length of the first chunk. The server sets it here: a number above 1 is ignored, with a warning."""
    allow_partial: bool | None = None
    """True accepts a speech whose end the model missed: its `finish_reason` is neither `stop` nor `length`. False makes
    it an error, and a raw stream breaks off. By default as the gateway's setting says: false."""
    options: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    """Parameters that only this model has. The model checks them; an error names those it knows."""

    @field_validator("options")
    @classmethod
    def _check_options(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """Bound the size, and refuse what JSON cannot hold."""
        if value is not None:
            _check_json(value)
        return value

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, values: Any) -> Any:
        return translate(values) if isinstance(values, dict) else values

    def check(self) -> str | None:
        """What is wrong with the fields that the server does not know, as a sentence; None if nothing is."""
        return None

    def ignored(self) -> list[str]:
        """A sentence for each field that has no effect, though the caller may expect one."""
        if (self.initial_codec_chunk_frames or 0) > 1:
            return ["initial_codec_chunk_frames is ignored: the server sets the length of the first chunk"]
        return []


class Turn(Voiced):
    """What one voice says, in a request of several. What is left out is as in the request."""

    text: Annotated[str, Field(min_length=1)]
    style: Name | None = None
    """Of its voice."""
    language: Annotated[str, Field(max_length=MAX_NAME)] | None = None
    instructions: Instructions | None = None
    speed: Speed = 1.0
    """Times that of the request."""
    pause_ms: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Silence behind it."""


class Pronunciation(Strict):
    """A rule of a dictionary, as ElevenLabs has it: what is spoken in place of some words. Or a dictionary that is
    kept."""

    meant_empty = frozenset(("alias",))
    model_config = ConfigDict(frozen=True)

    string_to_replace: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    alias: Annotated[str, Field(max_length=500)] | None = None
    type: Literal["alias"] = "alias"
    """Phonemes have no effect with the models here."""
    case_sensitive: bool = True
    word_boundaries: bool = True
    """True: not where a letter or digit is beside it. In scripts without spaces it makes no difference."""
    dictionary: Annotated[str, Field(max_length=MAX_NAME)] | None = None
    """The id of a dictionary, in place of a rule."""
    version: Annotated[str, Field(max_length=MAX_NAME)] | None = None
    """Of the dictionary; by default its newest."""

    @model_validator(mode="after")
    def _check_kind(self) -> Pronunciation:
        of_rule = self.string_to_replace is not None, self.alias is not None
        if of_rule != ((True, True) if self.dictionary is None else (False, False)):
            raise PydanticCustomError("rule", "give `string_to_replace` and `alias`, or the id of a `dictionary`")
        return self


class TextOptions(SpeechOptions):
    """All fields of a speech except its text."""

    tag_pauses: ClassVar[bool] = False
    """Whether `<break time="1s"/>` in a text that is no SSML is a silence."""
    relative_rates: ClassVar[bool] = False
    """Whether `rate="20%"` in SSML is faster, as with Azure, and not a fifth."""

    input_type: InputType = "auto"
    """`ssml`: Speech Synthesis Markup, which is recognised by its `<speak`, too; `text` is never that. `script`: a
    dialogue, in which each line begins with the name of a voice and a colon; a line without one goes on with the turn
    before."""
    inline_pauses: bool = False
    """True: `[pause:500ms]` in a text is a silence of this length."""
    pronunciations: Annotated[list[Pronunciation], Field(max_length=MOST_PRONUNCIATIONS)] | None = None
    """Words that are spoken as others. The longest that fits wins, of equal ones the first. Up to three may be
    dictionaries that are kept, which come behind the rules."""
    normalize: Normalize = "off"
    """`on`: numbers, dates, money, units, addresses and a few abbreviations are spoken in words of the `language`;
    `numbers`: only what has a digit."""

    @field_validator("pronunciations")
    @classmethod
    def _count_dictionaries(cls, value: list[Pronunciation] | None) -> list[Pronunciation] | None:
        if sum(each.dictionary is not None for each in value or ()) > MOST_DICTIONARIES:
            raise PydanticCustomError("dictionaries", "at most {most} dictionaries", {"most": MOST_DICTIONARIES})
        return value

    @property
    def rules(self) -> list[Pronunciation]:
        return [each for each in self.pronunciations or () if each.dictionary is None]

    @property
    def styles(self) -> list[Style] | None:
        """Those that its words may have; None: any."""
        return [Style(None, self.language)] if self.input_type == "text" else None


Granularities = Annotated[list[Literal["word"]], Field(max_length=1)]
"""The units whose times an answer has."""


class SpeechRequest(TextOptions):
    """The body of POST /v1/audio/speech, and of POST /v1/audio/text."""

    model_config = ConfigDict(json_schema_extra=_without_input)

    input: Annotated[str, Field(min_length=1)]
    """The text; left out with `segments`."""
    segments: Annotated[list[Turn], Field(min_length=1, max_length=MOST_TURNS)] | None = None
    """Texts of several voices in place of `input`, spoken one after the other as one speech."""
    stream_format: Literal["audio", "sse"] | None = None
    """`audio` streams the bytes of the file as they are made; `sse` streams events."""
    stream: bool | None = None
    """False answers with the complete file, whose header has the length. True without stream_format means events."""
    timestamp_granularities: Granularities | None = None
    """`["word"]`: each event has `words`, those whose times are known since the event before; the last one has the
    rest. Times are seconds of the audio."""

    @model_validator(mode="before")
    @classmethod
    def _join(cls, values: Any) -> Any:
        """The texts of the segments are the input."""
        turns = values.get("segments") if isinstance(values, dict) else None
        if not isinstance(turns, list):
            return values
        joined = " ".join(str(turn.get("text", "")) if isinstance(turn, dict) else "" for turn in turns) or " "
        if values.get("input") not in (None, "", joined):  # OpenAI's clients must send one
            raise PydanticCustomError("segments", "give `input` or `segments`, not both")
        return {**values, "input": joined}

    def check(self) -> str | None:
        if not self.input.strip() and self.input_type != "ssml":
            return "`input` is blank; give at least one word to say"
        if self.stream is False and self.stream_format == "sse":
            return "`stream_format sse` is a stream; leave out `stream`, or set it to true"
        if self.timestamp_granularities and not self.events:
            return "`timestamp_granularities` needs a stream of events; set `stream_format` to sse"
        return super().check()

    @property
    def styles(self) -> list[Style] | None:
        if self.input_type == "script" or "<" in self.input:
            return None
        turns = [Style(turn.voice_name, turn.language or self.language) for turn in self.segments or ()]
        return turns or [Style(None, self.language)]

    @property
    def events(self) -> bool:
        """Whether the answer is a stream of events."""
        return self.stream_format == "sse" or (self.stream_format is None and self.stream is True)


class BatchRequest(TextOptions):
    """The body of POST /v1/audio/speech/batch. The fields beside `items` are the defaults of each item."""

    items: Annotated[list[dict[str, Any]], Field(min_length=1)]
    """Each is like the body of /v1/audio/speech, without stream, stream_format and timestamp_granularities, and is
    checked and fails alone."""


def _check_json(options: dict[str, Any]) -> None:
    """Check the values of a family's options; stops once they are too large.

    Raises:
        PydanticCustomError: they are too large or too deep, or JSON cannot hold a value.
    """
    left = MAX_OPTIONS_BYTES  # values and characters that may still come; each takes a byte or more

    def check(value: Any, depth: int) -> None:
        nonlocal left
        if depth > MAX_OPTIONS_DEPTH and isinstance(value, dict | list):
            raise PydanticCustomError("options_depth", "at most {most} levels are allowed", {"most": MAX_OPTIONS_DEPTH})
        left -= 1 + (len(value) if isinstance(value, str) else 0)
        if left < 0:
            raise _too_large()
        if isinstance(value, float) and not math.isfinite(value):
            raise PydanticCustomError("options_number", "every number must be finite")
        if isinstance(value, dict):
            for name, entry in value.items():
                check(name, depth)
                check(entry, depth + 1)
        elif isinstance(value, list):
            for entry in value:
                check(entry, depth + 1)

    check(options, 1)
    try:
        size = len(json.dumps(options, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        raise PydanticCustomError("options_text", "every text must be valid Unicode, without lone surrogates") from None
    if size > MAX_OPTIONS_BYTES:
        raise _too_large()


def _too_large() -> PydanticCustomError:
    return PydanticCustomError("options_size", "at most {most} bytes of JSON are allowed", {"most": MAX_OPTIONS_BYTES})
