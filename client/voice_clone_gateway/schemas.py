"""The JSON of the requests. An unknown field is an error, as is a value of another type."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

MAX_EMBEDDING = 8192  # values of a speaker embedding; the server knows the exact number
MAX_OPTIONS_BYTES = 4096  # of the JSON of a family's options
MAX_OPTIONS_DEPTH = 8  # objects and lists within each other

FormatName = Literal["wav", "pcm", "flac", "mp3", "opus", "aac", "mulaw", "alaw"]
SampleRate = Literal[8000, 16000, 22050, 24000, 44100, 48000]
# The empty constraint makes pydantic check the text, which refuses the lone surrogates that JSON can hold.
Text = Annotated[str, Field(min_length=0)]
Embedding = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1, max_length=MAX_EMBEDDING)]


class Strict(BaseModel):
    """A JSON object without unknown fields and without conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class VoiceId(Strict):
    """A voice as an object, a form of newer OpenAI clients."""

    id: Text


class SpeechOptions(Strict):
    """All fields of a speech except its text."""

    model: Text | None = None
    """One of /v1/models; by default the first of them."""
    voice: Text | VoiceId | None = None
    """A registered voice. Exactly one of voice, ref_audio and speaker_embedding."""
    speaker: Text | None = None
    """Another name of `voice`."""
    ref_audio: Text | None = None
    """A clip of 1 to 30 s as `data:audio/...;base64,` URL, or the http(s) URL of one."""
    reference_audio: Text | None = None
    """Another name of `ref_audio`."""
    ref_text: Text | None = None
    """The words spoken in ref_audio; with them the voice is cloned in context, else by its speaker embedding alone."""
    reference_text: Text | None = None
    """Another name of `ref_text`."""
    x_vector_only_mode: bool | None = None
    """True clones by the speaker embedding alone, false requires in-context cloning."""
    speaker_embedding: Embedding | None = None
    """A speaker embedding of the model's size."""
    response_format: FormatName = "wav"
    """The audio's format. `pcm` is signed 16-bit little-endian; `mulaw` and `alaw` have 8000 Hz."""
    sample_rate: SampleRate | None = None
    """Hz; by default the model's own, or the nearest one that the format supports."""
    speed: Annotated[float, Field(ge=0.25, le=4.0, allow_inf_nan=False)] = 1.0
    """Factor of the tempo; the pitch is unchanged."""
    instructions: Annotated[str, Field(max_length=4096)] | None = None
    """Not supported: anything but an empty text is an error."""
    task_type: Literal["Base"] | None = None
    """The kind of speech; `Base` is cloning, the only one."""
    language: Text | None = None
    """A language of the model, or `Auto`."""
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    """The same seed gives the same audio."""
    max_new_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Maximum length of the speech, in frames of the model."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    do_sample: bool | None = None
    """False takes the most likely value in each step."""
    non_streaming_mode: bool | None = None
    """The model reads the whole text before it makes the first frame."""
    options: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    """Parameters that only this model has. The model checks them; an error names those it knows."""

    @field_validator("voice", mode="before")
    @classmethod
    def _check_voice(cls, value: Any) -> Any:
        """One message instead of pydantic's one for each form of a voice."""
        if value is None or isinstance(value, str) or (isinstance(value, dict) and [*value] == ["id"]):
            return value
        raise PydanticCustomError("voice", 'it must be the name of a voice, or {"id": NAME}')

    @field_validator("options")
    @classmethod
    def _check_options(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """Bound the size, and refuse what JSON cannot hold."""
        if value is not None:
            _check_json(value)
        return value

    @model_validator(mode="before")
    @classmethod
    def _fold_aliases(cls, values: Any) -> Any:
        """Rename aliases."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        for alias, name in (("speaker", "voice"), ("reference_audio", "ref_audio"), ("reference_text", "ref_text")):
            value = values.get(alias)
            if isinstance(value, str):
                del values[alias]
                if values.get(name) is None:
                    values[name] = value
                elif values[name] not in (value, {"id": value}):
                    raise PydanticCustomError(
                        "contradiction", "{alias} is another name of {name}; give only one", _texts(alias, name)
                    )
        return values

    @property
    def voice_name(self) -> str | None:
        """The name of the registered voice, in either form."""
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice

    def check(self) -> str | None:
        """The error of the combination of fields, as a sentence; None if it is valid."""
        sources = ("voice", "ref_audio", "speaker_embedding")
        present = [name for name in sources if getattr(self, name) is not None]
        if len(present) != 1:
            return f"give exactly one of {', '.join(sources)}; got {' and '.join(present) or 'none of them'}"
        if self.instructions and self.instructions.strip():
            return "instructions are not supported; leave the field out"
        if self.ref_text is not None:
            if self.ref_audio is None:
                return "ref_text belongs to ref_audio; a registered voice has its own transcript"
            if not self.ref_text.strip():
                return "ref_text is blank; give the words spoken in ref_audio, or leave it out"
            if self.x_vector_only_mode:
                return "x_vector_only_mode uses no transcript; leave out either it or ref_text"
        elif self.ref_audio is not None and self.x_vector_only_mode is False:
            return "in-context cloning (x_vector_only_mode false) needs ref_text, the words spoken in ref_audio"
        if self.speaker_embedding is not None and self.x_vector_only_mode is False:
            return "a speaker_embedding allows x-vector cloning only; leave x_vector_only_mode out"
        return None


class SpeechRequest(SpeechOptions):
    """The body of POST /v1/audio/speech."""

    input: Annotated[str, Field(min_length=1)]
    """The text."""
    stream_format: Literal["audio", "sse"] | None = None
    """`audio` streams the bytes of the file as they are made; `sse` streams events."""
    stream: bool | None = None
    """False answers with the complete file, whose header has the length. True without stream_format means events."""

    def check(self) -> str | None:
        if not self.input.strip():
            return "input is blank; give at least one word to say"
        if self.stream is False and self.stream_format == "sse":
            return "stream_format sse is a stream; leave out stream, or set it to true"
        return super().check()

    @property
    def events(self) -> bool:
        """Whether the answer is a stream of events."""
        return self.stream_format == "sse" or (self.stream_format is None and self.stream is True)


class BatchRequest(SpeechOptions):
    """The body of POST /v1/audio/speech/batch. The fields beside `items` are the defaults of each item."""

    items: Annotated[list[dict[str, Any]], Field(min_length=1)]
    """Each is like the body of /v1/audio/speech, without stream and stream_format, and is checked and fails alone."""


def _texts(alias: str, name: str) -> dict[str, Any]:
    return {"alias": alias, "name": name}


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
            raise _TOO_LARGE
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
        raise _TOO_LARGE


_TOO_LARGE = PydanticCustomError(
    "options_size", "at most {most} bytes of JSON are allowed", {"most": MAX_OPTIONS_BYTES}
)
