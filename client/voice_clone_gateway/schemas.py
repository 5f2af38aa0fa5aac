"""The JSON of the requests. A field that is not here is an error, as is a value of another type."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

MAX_EMBEDDING = 8192  # values of a speaker embedding; the server knows the exact number

FormatName = Literal["wav", "pcm", "flac", "mp3", "opus", "aac", "mulaw", "alaw"]
SampleRate = Literal[8000, 16000, 22050, 24000, 44100, 48000]
# The empty constraint has pydantic look at the text, which refuses the lone surrogates that JSON can hold.
Text = Annotated[str, Field(min_length=0)]
Embedding = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1, max_length=MAX_EMBEDDING)]


class Strict(BaseModel):
    """A JSON object in which everything is known and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class VoiceId(Strict):
    """A voice as an object, as newer OpenAI clients may send it."""

    id: Text


class SpeechOptions(Strict):
    """All of a speech but its text."""

    model: Text | None = None
    """The model family, one of /v1/models; the gateway's if it is absent."""
    voice: Text | VoiceId | None = None
    """A registered voice. Exactly one of voice, ref_audio and speaker_embedding."""
    speaker: Text | None = None
    """Another name of `voice`."""
    ref_audio: Text | None = None
    """A clip of 1 to 30 s as `data:audio/...;base64,` URL, or the http(s) URL of one."""
    reference_audio: Text | None = None
    """Another name of `ref_audio`."""
    ref_text: Text | None = None
    """The words spoken in ref_audio: with them the voice is cloned in context, else by its speaker embedding alone."""
    reference_text: Text | None = None
    """Another name of `ref_text`."""
    x_vector_only_mode: bool | None = None
    """True clones by the speaker embedding alone, false insists on in-context cloning."""
    speaker_embedding: Embedding | None = None
    """A ready speaker embedding of the model's size."""
    response_format: FormatName = "wav"
    """The audio's format. `pcm` is signed 16-bit little-endian; `mulaw` and `alaw` have 8000 Hz."""
    sample_rate: SampleRate | None = None
    """Hz; the model's own or the nearest that the format has if it is absent."""
    speed: Annotated[float, Field(ge=0.25, le=4.0, allow_inf_nan=False)] = 1.0
    """How fast; the pitch stays."""
    instructions: Annotated[str, Field(max_length=4096)] | None = None
    """Base checkpoints follow none: anything but an empty text is an error."""
    task_type: Literal["Base"] | None = None
    """What the checkpoint does: clone."""
    language: Text | None = None
    """A language of the checkpoint, or `Auto`."""
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    """The same seed gives the same audio."""
    max_new_tokens: Annotated[int, Field(ge=1, le=4096)] | None = None
    """The longest speech, in codec frames of 80 ms."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    do_sample: bool | None = None
    """False takes the likeliest code each time."""
    subtalker_temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """This and the next three: the same for the codes 2 to 16 of each frame."""
    subtalker_top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    subtalker_top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    subtalker_do_sample: bool | None = None
    non_streaming_mode: bool | None = None
    """Show the model all the text before the first frame."""

    @field_validator("voice", mode="before")
    @classmethod
    def _check_voice(cls, value: Any) -> Any:
        """One message where pydantic has one for each way to give a voice."""
        if value is None or isinstance(value, str) or (isinstance(value, dict) and [*value] == ["id"]):
            return value
        raise PydanticCustomError("voice", 'it must be the name of a voice, or {"id": NAME}')

    @model_validator(mode="before")
    @classmethod
    def _fold_aliases(cls, values: Any) -> Any:
        """Aliases under their real names."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        for alias, name in (("speaker", "voice"), ("reference_audio", "ref_audio"), ("reference_text", "ref_text")):
            given = values.get(alias)
            if isinstance(given, str):
                del values[alias]
                if values.get(name) is None:
                    values[name] = given
                elif values[name] not in (given, {"id": given}):
                    raise PydanticCustomError(
                        "contradiction", "{alias} is another name of {name}; give only one", _texts(alias, name)
                    )
        return values

    @property
    def voice_name(self) -> str | None:
        """The registered voice, however it was given."""
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice

    def check(self) -> str | None:
        """What is wrong with the fields together, in a sentence; None if nothing is."""
        sources = ("voice", "ref_audio", "speaker_embedding")
        given = [name for name in sources if getattr(self, name) is not None]
        if len(given) != 1:
            return f"give exactly one of {', '.join(sources)}; got {' and '.join(given) or 'none of them'}"
        if self.instructions and self.instructions.strip():
            return "instructions are not followed by Base checkpoints, the only ones that clone; leave the field out"
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
    """The text that is spoken."""
    stream_format: Literal["audio", "sse"] | None = None
    """`audio` streams the bytes of the file, as they are made; `sse` streams events."""
    stream: bool | None = None
    """False answers with the whole file at once, whose header then knows its length. True alone means events."""

    def check(self) -> str | None:
        if not self.input.strip():
            return "input is blank; give at least one word to say"
        if self.stream is False and self.stream_format == "sse":
            return "stream_format sse is a stream; leave out stream, or make it true"
        return super().check()

    @property
    def events(self) -> bool:
        """Whether the answer is a stream of events."""
        return self.stream_format == "sse" or (self.stream_format is None and self.stream is True)


class BatchRequest(SpeechOptions):
    """The body of POST /v1/audio/speech/batch. Each item has the fields beside `items` unless it says otherwise."""

    items: Annotated[list[dict[str, Any]], Field(min_length=1)]
    """Each like the body of /v1/audio/speech, without stream and stream_format. Each is checked, and fails, alone."""


def _texts(alias: str, name: str) -> dict[str, Any]:
    return {"alias": alias, "name": name}
