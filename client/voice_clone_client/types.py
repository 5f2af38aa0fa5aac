"""What the client returns, and the arguments of a speech."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray
from voice_clone_words.words import Word

from .clips import Source
from .fields import Knobs


class StreamOptions(Knobs, total=False):
    """The other arguments of every speech."""

    voice: str | None
    """A registered voice."""
    reference_audio: Source | None
    """Path or bytes of a clip of 1 to 30 s, in the formats of `clips`."""
    reference_text: str | None
    """Its transcript, for in-context cloning."""
    speaker_embedding: ArrayLike | None
    """float [dimension of the model]."""
    voice_prompt: Source | None
    """Path or bytes of a bundle of one voice, as `export(name)` gives it: it speaks as it would where it is registered,
    without a registration and without an extraction."""
    x_vector_only: bool | None
    """True clones by the speaker embedding alone, False requires in-context cloning."""
    model: str | None
    """The family that speaks this text; None takes the client's."""
    require_whole: bool
    """Raise `Incomplete` after the last chunk if the model missed the end; see `Speech.whole`."""
    words: bool
    """Find out when each word is spoken: see `Chunk.words` and `Speech.words`. Audio does not wait for it."""


class SpeechOptions(StreamOptions, total=False):
    """Those of `Client.speak`."""

    synthesizer: bool
    """Let `info` have the `synthesizer` that speaks, see `Family`; None there: the server does not know it yet."""
    headers: Mapping[str, str] | None
    """Sent with this call alone, such as `traceparent` of W3C's Trace Context."""


class LongOptions(SpeechOptions, total=False):
    """Those of `Client.speak_long`; `max_frames` is the limit of each sentence."""

    sentence_characters: int
    """A longer text is split, and a longer sentence is cut; 300 by default."""
    sentence_pause: float
    """Seconds of silence between sentences; none by default."""
    paragraph_pause: float
    """Seconds of silence between paragraphs; none by default."""
    retries: int
    """Further attempts at a sentence whose end the model missed, as long as nothing of it was read; 2 by default. With
    a `seed` of the caller's, or `do_sample` False, there are none: they would be the same."""
    hold: bool
    """A sentence is read when it is whole, so each of them can be tried again. `read` holds by itself."""


class KeepOptions(TypedDict, total=False):
    """The other arguments of `Client.keep`."""

    consent: str | None
    """How the speaker consented."""
    description: str | None
    """Free text."""
    wait: bool
    """Return when all `artifacts` are ready or failed; by default when the voice is stored."""
    timeout: float | None
    """Seconds to wait for them, instead of the server's default."""
    replace: bool
    """Replace a voice of that name that differs; otherwise it is an error."""
    shared: bool
    """Whether other owners may use the voice."""
    model: str | None
    """The family for which the server prepares the voice; None takes the client's, and if that is None too, all
    families of the server."""


class UploadOptions(KeepOptions, total=False):
    """Those of `Client.upload`."""

    reference_text: str | None
    """The transcript of the clip, of several the first; with it the voice is cloned in context, else by its speaker
    embedding alone."""
    transcribe: bool
    """Let the server's model `transcriber` write that transcript; `Voice.reference_text` shows it."""
    speaker_embedding: ArrayLike | None
    """float [dimension of the model], instead of a clip."""
    strict: bool
    """Refuse a clip that has warnings, see `Voice.warnings`."""
    trim_silence: bool
    """Cut the silence off both ends of the clip; `Voice.report` says how much."""
    style: str | None
    """Add the clip as this style to a voice that there is; with `replace`, in the place of the older one. `neutral` is
    the first clip of a voice."""
    design: str | None
    """How a designed voice was made, see `Voice`; `keep` sets this and the next two."""
    design_model: str | None
    design_seed: int | None


Mark = Literal["off", "on", "required"]


@dataclass(frozen=True)
class Family:
    """A model family of a server."""

    instructions_option: str | None = None
    """The key of `options` that takes instructions on how to speak, a sentence or so. None: it follows none."""
    voiceless: bool = False
    """Whether it can speak without a voice."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What it takes in `options`: what each means, and what it may be."""
    languages: tuple[str, ...] = ()
    """Those that a speech may name; empty: none, or the checkpoint decides."""
    max_characters: int | None = None
    """Of a piece of text that it speaks well at once; None: it does not say."""
    synthesizer: str | None = None
    """Digest of all on the server that makes its sound: checkpoint, precision, device, settings and code. None: not
    asked for, or not known yet."""


@dataclass(frozen=True)
class Detection:
    """Whether a sound carries the mark of synthetic speech."""

    mark: str | None
    """The kind of the mark, such as `perth`; None: there is none."""
    confidence: float
    """0 to 1; of the piece of the sound that has the most."""
    speed: float
    """At how many times its speed the marked speech is played."""
    start: float
    """Where that piece begins, in seconds."""
    seconds: float
    """How long it is."""


@dataclass(frozen=True)
class Take:
    """A recording that was uploaded with the clip of a voice."""

    number: int
    """Of its file in the upload, from 1."""
    file_size: int
    duration: float
    """Seconds."""
    speech_seconds: float


@dataclass(frozen=True)
class Artifacts:
    """State of a voice's preparation for one model family in one mode."""

    model_type: str
    mode: str
    """`icl` for in-context cloning, `x_vector` for the speaker embedding alone, or a mode of another family."""
    state: str
    """`pending`, `processing`, `ready`, `failed`, or `unsupported`: the voice lacks what the family needs."""
    reason: str | None = None
    """Why the preparation failed or must be repeated, or what the family needs; names of parameters in backquotes."""
    extraction_ms: float | None = None
    generated_at: float | None = None
    """When they were computed, in seconds since 1970; None if their file does not say it."""
    cosines: Mapping[str, float] | None = None
    """Of the speaker embedding of each file to the mean of the others, by its number, where several were averaged."""
    fingerprint: str | None = None
    """Hash of the encoder that computed the artifacts."""


@dataclass(frozen=True)
class ClipWarning:
    """What is wrong with a voice's clip."""

    code: str
    """For programs, such as `noise`."""
    message: str
    """A sentence: what was measured, and what would be good; names of parameters in backquotes."""


NEUTRAL = "neutral"
"""The style of the first clip of a voice."""
INSTRUCTIONS = "instructions"
"""Behind other styles: if the voice has none of them, it speaks with its first clip, and the name of the first style
is the model's instruction."""
MAX_NAME = 256
"""Characters of a name, before Unicode composes them."""


def name_key(name: str) -> str:
    """What two names have in common if the server takes them for the same voice: all but case, outer spaces, and how
    Unicode composes their characters. A name longer than the server's limit is no voice's, and stays as it is: to order
    its combining marks takes a time that grows with the square of their number."""
    if len(name) > MAX_NAME:
        return name
    text = unicodedata.normalize("NFC", name).strip(" ")
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def clips_and_directions(style: str | None) -> tuple[list[str], str]:
    """The clips that a style names, and the directions behind them: of `happy,neutral+joy:0.6` these are `+joy:0.6`. A
    style without a clip names the first one, `neutral`."""
    clips, plus, directions = (style or NEUTRAL).partition("+")
    if ":" in clips:
        clips, plus, directions = NEUTRAL, "+", style or ""
    return [name.strip().lower() for name in (clips or NEUTRAL).split(",")], plus + directions


@dataclass(frozen=True)
class Voice:
    """A registered voice. `record` is the server's whole JSON of it."""

    name: str
    generation: int | None = None
    """Grows with each upload and each forced preparation."""
    digest: str | None = None
    """Stands for this generation in files of its speech."""
    created_at: float | None = None
    """Seconds since 1970."""
    consent: str | None = None
    description: str | None = None
    mime_type: str | None = None
    file_size: int | None = None
    """Bytes."""
    duration: float | None = None
    """Seconds."""
    sample_rate: int | None = None
    reference_text: str | None = None
    embedding_source: str | None = None
    """`audio`, or `direct` for a voice uploaded as an embedding."""
    embedding_dim: int | None = None
    """Values of that embedding."""
    design: str | None = None
    """The words that described a designed voice; None: it is none."""
    design_model: str | None = None
    """The family that spoke the clip of a designed voice."""
    design_seed: int | None = None
    report: Mapping[str, float] | None = None
    """Measurements of the clip, such as `snr_db`; None for an embedding."""
    warnings: tuple[ClipWarning, ...] = ()
    owner: str | None = None
    """Whose voice it is; None: the operator's, or the server does not say."""
    shared: bool = False
    """Whether other owners may use it."""
    artifacts: tuple[Artifacts, ...] = ()
    takes: tuple[Take, ...] = ()
    """The other recordings, where the voice was uploaded with several; the clip is the best of them."""
    styles: Mapping[str, Voice] = field(default_factory=dict)
    """Further clips of the voice by the names of their styles, each with what is known of it."""
    record: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Voice:
        """A voice from the server's JSON. Fields that this client does not know are in `record` alone."""
        artifacts = tuple(Artifacts(**_known(Artifacts, entry)) for entry in record.get("artifacts", ()))
        warnings = tuple(ClipWarning(**_known(ClipWarning, entry)) for entry in record.get("warnings", ()))
        styles = {
            style: cls.from_record({"name": record["name"], **clip}) for style, clip in record.get("styles", {}).items()
        }
        takes = tuple(Take(**_known(Take, entry)) for entry in record.get("takes", ()))
        made = {"takes": takes, "artifacts": artifacts, "warnings": warnings, "styles": styles, "record": record}
        return cls(**{**_known(cls, record), **made})

    def clip(self, style: str | None) -> Voice | None:
        """The clip of a style, or of several with commas between them the first; None: the voice has none of them."""
        clips = {NEUTRAL: self, INSTRUCTIONS: self, **self.styles}
        return next((clips[name] for name in clips_and_directions(style)[0] if name in clips), None)

    @property
    def all_styles(self) -> tuple[str, ...]:
        """The names of its styles, `neutral` first."""
        return (NEUTRAL, *self.styles)


@dataclass(frozen=True)
class Consent:
    """The recording of a speaker's consent. It is never spoken with."""

    id: str
    """What the `consent` of an upload may be."""
    description: str
    language: str
    """Of the recording, as a BCP 47 tag."""
    created_at: float
    """Seconds since 1970."""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Consent:
        """A consent from the server's JSON."""
        return cls(record["name"], record["description"], record["language"], record["created_at"])


@dataclass(frozen=True)
class KeptDictionary:
    """A dictionary of pronunciations that the server keeps. It reads neither `about` nor `content`."""

    id: str
    generation: int
    """Another one with each change."""
    created_at: float
    """Seconds since 1970."""
    owner: str | None
    about: str
    content: bytes | None = None
    """None in lists."""

    @classmethod
    def from_record(cls, record: Mapping[str, Any], content: bytes | None = None) -> KeptDictionary:
        """A dictionary from the server's JSON."""
        name, generation, created_at = record["name"], record["generation"], record["created_at"]
        return cls(name, generation, created_at, record.get("owner"), record.get("about", ""), content)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A voice that a model made of a description, before it is kept."""

    samples: NDArray[np.float32]
    """[n], mono, in [-1, 1]: the text in that voice."""
    sample_rate: int
    text: str
    description: str
    model: str
    """The family that spoke it."""
    seed: int
    """The same one gives the same voice."""


@dataclass(frozen=True)
class Preset:
    """A voice that the checkpoint of a model family brings. It speaks by its name, and is never deleted."""

    name: str
    model_type: str
    """The family that has it."""
    registered: bool = False
    """Whether a registered voice of that name speaks in its place."""


Candidates = list[Candidate]
Presets = list[Preset]
Consents = list[Consent]
KeptDictionaries = list[KeptDictionary]
Voices = list[Voice]  # inside the clients' classes, `list` is the method
Names = list[str]


@dataclass(frozen=True, eq=False)
class Chunk:
    """A piece of a speech."""

    samples: NDArray[np.float32]
    """[n], mono, in [-1, 1]; the last chunk may have none."""
    sample_rate: int
    index: int
    """0, 1, 2, ..."""
    final: bool
    info: Mapping[str, Any] | None
    """On the first and the last chunk: stream id, voice generation, `cache`, `mode`, frames, milliseconds by stage."""
    words: tuple[Word, ...] = field(default=(), kw_only=True)
    """With `words`: those whose times are known since the chunk before. They may lie in earlier chunks."""


WHOLE = ("stop", "length")
"""The finish reasons of a speech whose model said the text, or that has the length that the caller wanted. All others
are missed ends."""


def is_whole(reason: str | None) -> bool:
    """Return whether a speech that ended so has all that its caller wanted."""
    return reason in WHOLE


def worse(one: str | None, other: str | None) -> str | None:
    """Return the worse of two finish reasons, of two missed ends the first. None, no reason at all, is a missed end."""
    return max(one, other, key=lambda reason: WHOLE.index(reason) if reason in WHOLE else len(WHOLE))


State = Literal["running", "finished", "cancelled", "failed"]


@dataclass(frozen=True)
class SpeechStatus:
    """How a speech goes, or how it ended."""

    state: State
    """`finished`: its last chunk was read; `cancelled`: it was closed before, or its task was cancelled."""
    finish_reason: str | None
    """How the model ended it, see `Speech.finish_reason`; None: it did not."""
    seconds: float
    """Of audio that was read."""
    first_audio_ms: float | None
    """From the request until the first chunk was read; None: there was none."""
    total_ms: float
    """From the request to the end, or until now."""
    error: BaseException | None = None
    """With which it failed: a `VoiceCloneError`, or what an iterator of its text raised."""


def _known(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {entry.name: values[entry.name] for entry in fields(cls) if entry.name in values}
