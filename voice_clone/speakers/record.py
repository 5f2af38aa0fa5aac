"""The record of a registered speaker: all but the audio and the artifacts themselves."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from voice_clone.errors import InvalidArgument, quoted
from voice_clone.lru_cache import Origin, scope_of
from voice_clone.speakers.name import check_word, parse_name
from voice_clone.speakers.take import Take, takes_of

if TYPE_CHECKING:  # talkers read records, and no clips
    from voice_clone.audio import Clip
    from voice_clone.speakers.clip_report import ClipReport
    from voice_clone.speakers.clip_warnings import ClipWarning

State = Literal["pending", "processing", "ready", "failed", "unsupported"]
Kind = Literal["voice", "consent", "alias", "dictionary"]
EmbeddingSource = Literal["audio", "direct", "consent", "alias", "dictionary"]
MAX_GENERATION = 2**53  # JSON readers that use doubles cannot distinguish larger numbers
MAX_ARTIFACTS = 64  # of one speaker
MAX_FINGERPRINT = 256  # characters
MAX_STYLES = 16  # of one speaker, besides the first clip
NEUTRAL = "neutral"  # names the first clip of a speaker where a style is asked for
INSTRUCTIONS = "instructions"  # ends a list of styles, the first of which a model may follow as words
_END_OF_TIME = 253402300800  # the year 10000, in seconds since 1970: calendars of programs end there
EMBEDDING = "speaker_embedding"  # the one artifact that a caller may bring along
X_VECTOR, IN_CONTEXT = "x_vector", "icl"  # the two natural modes; a family may have any others


class ArtifactId(NamedTuple):
    """Names artifacts of a speaker: those of one model type in one mode, made of the clip of a style; "": the first."""

    model_type: str
    mode: str
    style: str = ""


class ArtifactInfo(NamedTuple):
    """The origin of artifacts on disk: the encoder's fingerprint, the milliseconds of the extraction and its end.

    The end is in seconds since 1970; None in files that have none. `cosines` are those of the clip and its takes, if
    their speaker embeddings were averaged: of each to the mean of the others.
    """

    fingerprint: str
    extraction_ms: float
    generated_at: float | None = None
    cosines: tuple[float, ...] = ()


class ArtifactState(NamedTuple):
    """How far the artifacts of a speaker are.

    Attributes:
        reason: why they failed, must be made again, or what the family needs to support the speaker.
    """

    state: State
    reason: str | None = None
    info: ArtifactInfo | None = None


@dataclass(frozen=True)
class SpeakerRecord:
    """One generation of a registered speaker. It is immutable: a change makes a new record.

    Three other kinds of things are kept as speakers are, and are never spoken with: the recording of a consent and a
    dictionary of pronunciations, whose names are their ids, and a further name of a speaker. Servers that do not know
    these kinds leave such records out.

    Attributes:
        name: as shown.
        generation: larger than every generation before it, across restarts.
        created_at: time of the upload, in seconds since 1970.
        mime_type, file_size, duration, sample_rate: of the uploaded clip (bytes, seconds, Hz); None for an embedding.
        audio_digest: SHA-256 of the decoded clip; it finds the same clip among the inline ones.
        embedding_dim: of the uploaded embedding; None for a clip.
        design, design_model, design_seed: of a clip that a model has spoken in a voice of its own: the words that
            described the voice, the model and the seed; None for other voices.
        report: on the clip; None for an embedding.
        owner: whose speaker it is; None: the operator's.
        shared: whether other owners may use it.
        language: of the recording of a consent, as a BCP 47 tag.
        voice: the name for which an alias stands.
        about: what its keeper says of a dictionary, which only the keeper reads.
        loudness: LUFS by model type, mode and fingerprint, with a space between them: how loud a family speaks in it.
        artifacts: those that are stored, i.e. `ready`.
        beside: stored ones of another checkpoint: while servers of a fleet change from one to the other, both serve.
        takes: further recordings, whose files are stored behind that of the clip. What else the record says of the
            clip is not of them.
        since: the generation that the first clip came with, if styles have changed since.
        styles: further clips of the speaker, by the names of their styles. Each is a record with the consent,
            transcript, report and artifacts of its clip; its generation is the speaker's with which the clip came, and
            its owner is the speaker's.
    """

    name: str
    generation: int
    created_at: float
    embedding_source: EmbeddingSource
    consent: str | None = None
    description: str | None = None
    reference_text: str | None = None
    mime_type: str | None = None
    file_size: int | None = None
    duration: float | None = None
    sample_rate: int | None = None
    audio_digest: str | None = None
    embedding_dim: int | None = None
    design: str | None = None
    design_model: str | None = None
    design_seed: int | None = None
    report: ClipReport | None = None
    owner: str | None = None
    shared: bool = False
    language: str | None = None
    voice: str | None = None
    about: str | None = None
    loudness: Mapping[str, float] = field(default_factory=dict)
    artifacts: Mapping[ArtifactId, ArtifactInfo] = field(default_factory=dict)
    beside: Mapping[ArtifactId, ArtifactInfo] = field(default_factory=dict)
    takes: tuple[Take, ...] = ()
    since: int | None = None
    styles: Mapping[str, SpeakerRecord] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """Whether it is a speaker, or what else."""
        source = self.embedding_source
        return "voice" if source == "audio" or source == "direct" else source

    @property
    def origin(self) -> Origin:
        """The name of this generation in the caches of other processes, looked up now, and the scope there."""
        scope = f"voice {self.generation}" if self.shared else scope_of(self.owner)
        return Origin(str(self.generation), time.monotonic(), scope=scope)

    @property
    def digest(self) -> str:
        """SHA-256, 64 hexadecimal digits, that stands for the clip in this generation where no name is to be: in files
        of its speech. Only who has the record can say whose it is: the clip, or else the microsecond of the upload, is
        in it. A change of other clips does not change it. No bundle can bring the digest of another voice: the store
        gave the generation.
        """
        known = (self.key, self.since or self.generation, self.created_at, self.audio_digest, self.embedding_dim)
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()

    @property
    def key(self) -> str:
        """The key by which the speaker is found."""
        return parse_name(self.name).key

    def serves(self, owner: str | None, *, shared: bool) -> bool:
        """Whether a caller that acts for `owner` gets this speaker; with `shared`, also one that others share."""
        return owner is None or self.owner == owner or (shared and self.shared)

    @property
    def file_numbers(self) -> tuple[int, ...]:
        """The numbers of the files of the upload, from 1: that of the clip, and of its takes."""
        others = [take.number for take in self.takes]
        return (next(number for number in itertools.count(1) if number not in others), *others)

    @property
    def audio_digests(self) -> list[str]:
        """Those of the clip and of its takes."""
        return [each for each in (self.audio_digest, *(take.audio_digest for take in self.takes)) if each is not None]

    @property
    def audio_bytes(self) -> int:
        """The size of what is stored of the clip and its takes."""
        return (self.file_size or 0) + sum(take.file_size for take in self.takes)

    @property
    def clips(self) -> Mapping[str, SpeakerRecord]:
        """The record of each clip by the name of its style; "": of the first one, which is the speaker's itself."""
        return {"": self, **self.styles}

    def clip(self, style: str) -> SpeakerRecord:
        """The record of the clip of a style that there is."""
        return self.styles[style] if style else self

    def style_meant(self, asked: str | None) -> str:
        """The style that a caller asks for: the first of a list of names between commas that the speaker has.

        Returns: its name; "" for the first clip, which is `neutral`, also if nothing is asked for.

        Raises:
            InvalidArgument: a name cannot be that of a style, or the speaker has none of them; says which there are.
        """
        names = [style_name(name) for name in (asked or NEUTRAL).split(",")]
        found = next((name for name in names if not name or name in self.styles), None)
        if found is None:
            raise InvalidArgument(
                f"the voice {self.name!r} has no `style` {quoted(asked)}; its styles are "
                f"{', '.join([NEUTRAL, *self.styles])}. With `style` '{names[0]},{NEUTRAL}' it speaks in {NEUTRAL} "
                f"where {names[0]} is missing"
            )
        return found

    def with_clip(self, style: str, record: SpeakerRecord) -> SpeakerRecord:
        """The speaker with another record of the clip of a style, or with a further one.

        Raises:
            InvalidArgument: it would have too many.
        """
        if not style:
            return replace(record, owner=self.owner, shared=self.shared, styles=self.styles)
        styles = {**self.styles, style: record}
        if len(styles) > MAX_STYLES:
            raise InvalidArgument(
                f"the voice {self.name!r} has {MAX_STYLES} styles besides {NEUTRAL} and can have no more; delete one"
            )
        return replace(self, styles=dict(sorted(styles.items())))

    def says_the_same(self, other: SpeakerRecord) -> bool:
        """Whether both were uploaded alike, whenever that was and whatever has been computed since."""
        if self.styles.keys() != other.styles.keys():
            return False
        later = ("generation", "created_at", "report", "loudness", "artifacts", "beside", "since", "styles")
        alike = replace(self, **{name: getattr(other, name) for name in later}) == other
        return alike and all(clip.says_the_same(other.styles[style]) for style, clip in self.styles.items())

    def stored(self, artifact: ArtifactId, fingerprint: str) -> ArtifactInfo | None:
        """The origin of the stored artifacts of this encoder; None if there are none."""
        clip = self.clips.get(artifact.style)
        for made in () if clip is None else (clip.artifacts, clip.beside):
            if artifact in made and made[artifact].fingerprint == fingerprint:
                return made[artifact]
        return None

    def with_artifacts(self, artifact: ArtifactId, info: ArtifactInfo, *, beside: bool = False) -> SpeakerRecord:
        """The record once these artifacts are stored.

        Args:
            beside: those of another encoder, if there are any, stay beside them; the third encoder's go.

        Raises:
            InvalidArgument: the voice has as many artifacts as a record may list.
        """
        clip = self.clip(artifact.style)
        if clip is not self:
            return self.with_clip(artifact.style, clip._with_own(artifact, info, beside))
        return self._with_own(artifact, info, beside)

    def _with_own(self, artifact: ArtifactId, info: ArtifactInfo, beside: bool) -> SpeakerRecord:
        older = self.artifacts.get(artifact)
        if older is None and len(self.artifacts) >= MAX_ARTIFACTS:
            raise InvalidArgument(
                f"the voice {self.name!r} has {MAX_ARTIFACTS} artifacts and can keep no more; upload its clip again, "
                "with the option `replace`"
            )
        kept = dict(self.beside)
        if beside and older is not None and older.fingerprint != info.fingerprint:
            kept[artifact] = older
        elif not beside:
            kept.pop(artifact, None)
        return replace(self, artifacts={**self.artifacts, artifact: info}, beside=kept)

    def loudness_with(self, artifact: ArtifactId, fingerprint: str) -> float | None:
        """How loud the family of these artifacts speaks, in LUFS; None if nobody has measured it."""
        return self.clip(artifact.style).loudness.get(f"{artifact.model_type} {artifact.mode} {fingerprint}")

    def with_loudness(self, artifact: ArtifactId, loudness: float) -> SpeakerRecord:
        """The record once the loudness with these artifacts is kept; that with those of an older checkpoint goes.

        Raises:
            InvalidArgument: the voice has no such artifacts.
        """
        clip = self.clip(artifact.style)
        if artifact not in clip.artifacts:
            raise InvalidArgument(f"the voice {self.name!r} has no artifacts of this `model_type` in this mode")
        place = f"{artifact.model_type} {artifact.mode} "
        kept = {name: value for name, value in clip.loudness.items() if not name.startswith(place)}
        noted = replace(clip, loudness={**kept, place + clip.artifacts[artifact].fingerprint: loudness})
        return self.with_clip(artifact.style, noted)

    def of_generation(self, generation: int) -> SpeakerRecord:
        """The same speaker as a new generation. Clips of styles that have none yet came with it."""
        styles = {
            s: clip if clip.generation else replace(clip, generation=generation) for s, clip in self.styles.items()
        }
        return replace(self, generation=generation, styles=styles)

    def renewed(self, generation: int, made: Iterable[ArtifactId]) -> SpeakerRecord:
        """The same speaker as a new generation, in which these artifacts were made again: their clips count as new."""
        anew = {artifact.style for artifact in made}
        styles = {s: replace(clip, generation=0) if s in anew else clip for s, clip in self.styles.items()}
        since = None if "" in anew else self.since or self.generation
        return replace(self, since=since, styles=styles).of_generation(generation)

    def warnings(self) -> list[ClipWarning]:
        """What is wrong with the clip."""
        if self.report is None or self.duration is None or self.sample_rate is None:
            return []
        from voice_clone.speakers.clip_warnings import of_takes, warnings_of

        of_clip = warnings_of(self.report, self.duration, self.sample_rate, self.reference_text)
        return [*of_clip, *of_takes([self._cosines(info) for info in self.artifacts.values()])]

    def _cosines(self, info: ArtifactInfo) -> dict[int, float]:
        """Those of the files of the upload, by their numbers."""
        return dict(sorted(zip(self.file_numbers, info.cosines, strict=False)))

    def to_json(self) -> str:
        """The record as it stands in the header of the speaker's file."""
        values = {name: value for name, value in vars(self).items() if _given(value) and value not in ({}, ())}
        values["artifacts"] = _listed(self.artifacts)
        if any(info.cosines for info in self.artifacts.values()):
            values["cosines"] = [info.cosines for info in self.artifacts.values()]
        if self.beside:
            values["beside"] = _listed(self.beside)
        if self.report is not None:
            values["report"] = self.report.to_json()
        if self.styles:
            values["styles"] = {style: json.loads(clip.to_json()) for style, clip in self.styles.items()}
        return json.dumps(values, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, style: str = "") -> SpeakerRecord:
        """The record that `to_json` wrote; fields of a newer server are left out. `style`: of the clip that it is of.

        Raises:
            ValueError, KeyError, TypeError, InvalidArgument: the text is not a record.
        """
        values: dict[str, Any] = json.loads(text)
        json.dumps(values, ensure_ascii=False).encode()  # a lone surrogate is no text
        artifacts, beside = _artifacts(values.pop("artifacts"), style), _artifacts(values.pop("beside", []), style)
        for artifact, cosines in zip(tuple(artifacts), values.pop("cosines", ()), strict=False):
            if not all(isinstance(value, (int, float)) and -1 <= value <= 1 for value in cosines):
                raise ValueError("a cosine is out of range")
            artifacts[artifact] = artifacts[artifact]._replace(cosines=tuple(cosines))
        values["takes"] = takes_of(values.pop("takes", []))
        clips = values.pop("styles", {})
        if len(clips) > (0 if style else MAX_STYLES) or not all(style_name(name) == name for name in clips):
            raise ValueError("styles have wrong names, or are too many")
        values["styles"] = {name: cls.from_json(json.dumps(clip), name) for name, clip in clips.items()}
        if values.get("report") is not None:
            from voice_clone.speakers.clip_report import ClipReport

            values["report"] = ClipReport.from_json(values["report"])
        given = {each.name: values[each.name] for each in fields(cls) if each.name in values}
        record = cls(**given, artifacts=artifacts, beside=beside)
        sources = ("audio",) if style else _SOURCES
        if parse_name(record.name).text != record.name or record.embedding_source not in sources:
            raise ValueError("not a speaker's record")
        if record.owner is not None:
            check_word("owner", record.owner)
        kept = record.loudness
        if not isinstance(kept, dict) or len(kept) > MAX_ARTIFACTS or not all(map(is_loudness, kept.values())):
            raise ValueError("loudness has a wrong type, or is out of range")
        if not isinstance(record.shared, bool):
            raise ValueError("shared has a wrong type")
        for name, kind in _TYPES.items():
            value = getattr(record, name)
            optional = value is None and name not in ("generation", "created_at")
            if not optional and (not isinstance(value, kind) or isinstance(value, bool)):
                raise ValueError(f"{name} has a wrong type")
            if isinstance(value, (int, float)) and not 0 <= value < math.inf:
                raise ValueError(f"{name} is out of range")
        if record.generation >= MAX_GENERATION or record.created_at >= _END_OF_TIME:
            raise ValueError("generation or created_at is out of range")
        return record

    def public(self, states: Mapping[ArtifactId, ArtifactState], owner: str | None = None) -> dict[str, Any]:
        """The public part of the record and of its artifacts, fit for JSON, without keys for what was not given.

        Args:
            states: of the artifacts of all clips of the speaker.
            owner: the caller's. Other owners see neither the owner of the speaker nor its texts; None sees all.
        """
        hidden = _HIDDEN if self.serves(owner, shared=False) else _HIDDEN_FROM_OTHERS
        values = self._shown(states, "", hidden)
        clips = {style: clip._shown(states, style, hidden | _OF_SPEAKER) for style, clip in self.styles.items()}
        return {**values, "styles": clips} if clips else values

    def _shown(self, states: Mapping[ArtifactId, ArtifactState], style: str, hidden: frozenset[str]) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if _given(value) and name not in hidden}
        if self.report is not None and "report" not in hidden:
            from voice_clone.speakers.clip_warnings import speaking_rate

            rate = speaking_rate(self.report, self.reference_text)
            values["report"] = self.report.to_json() | ({} if rate is None else {"speaking_rate": rate})
            values["warnings"] = [warning._asdict() for warning in self.warnings()]
            if self.takes:
                values["takes"] = [take.public() for take in self.takes]
        values["digest"] = self.digest
        values["artifacts"] = [
            {"model_type": artifact.model_type, "mode": artifact.mode, "state": state.state}
            | ({} if state.reason is None else {"reason": state.reason})
            | ({} if state.info is None else {k: v for k, v in state.info._asdict().items() if v not in (None, ())})
            | ({} if state.info is None or not state.info.cosines else {"cosines": self._cosines(state.info)})
            for artifact, state in states.items()
            if artifact.style == style
        ]
        return values


def is_loudness(value: Any) -> bool:
    """Whether this can be the loudness of a voice: a number from -100 to 10 LUFS."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -100 <= value <= 10


def style_name(raw: str) -> str:
    """The name of a style without outer spaces, in lower case; "" for `neutral`, the first clip of a speaker.

    Raises:
        InvalidArgument: it is none.
    """
    name = check_word("a `style`", raw.strip(" ").lower())
    if name == INSTRUCTIONS:
        raise InvalidArgument(
            f"`style` {INSTRUCTIONS} names no clip; it may end the list of a speech: happy,{INSTRUCTIONS}"
        )
    return "" if name == NEUTRAL else name


def _listed(artifacts: Mapping[ArtifactId, ArtifactInfo]) -> list[list[Any]]:
    return [[artifact.model_type, artifact.mode, *info[:3]] for artifact, info in artifacts.items()]


def _artifacts(listed: Any, style: str) -> dict[ArtifactId, ArtifactInfo]:
    if len(listed) > MAX_ARTIFACTS:
        raise ValueError("too many artifacts")
    return dict(_artifact(style, *values) for values in listed)


def _artifact(
    style: str, model_type: Any, mode: Any, fingerprint: Any, extraction_ms: Any, generated_at: Any = None
) -> tuple[ArtifactId, ArtifactInfo]:
    """Older files have no time."""
    at = None if generated_at is None else _number("generated_at", generated_at, _END_OF_TIME)
    info = ArtifactInfo(_fingerprint(fingerprint), _number("extraction_ms", extraction_ms, math.inf), at)
    return ArtifactId(check_word("model_type", model_type), check_word("mode", mode), style), info


def _fingerprint(fingerprint: Any) -> str:
    if not isinstance(fingerprint, str) or not 0 < len(fingerprint) <= MAX_FINGERPRINT:
        raise ValueError("invalid fingerprint")
    return fingerprint


def _number(name: str, value: Any, end: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is not a number")
    if not 0.0 <= value < end:
        raise ValueError(f"{name} is out of range")
    return float(value)


def _given(value: Any) -> bool:
    return value is not None and value is not False


def clip_digest(clip: Clip) -> str:
    """SHA-256 of the decoded samples and their rate: equal sounds have equal digests, whatever their file format."""
    return hashlib.sha256(clip.sample_rate.to_bytes(4, "little") + clip.waveform.tobytes()).hexdigest()


_SOURCES = get_args(EmbeddingSource)
_HIDDEN = frozenset({"audio_digest", "beside", "loudness", "since", "styles", "takes"})
_OF_SPEAKER = frozenset({"name", "generation", "embedding_source"})  # which its clips have in common
_HIDDEN_FROM_OTHERS = _HIDDEN | {
    *("owner", "consent", "description", "reference_text", "report", "about"),
    *("design", "design_model", "design_seed"),
}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "generation": int,
    "created_at": (int, float),
    "consent": str,
    "description": str,
    "reference_text": str,
    "mime_type": str,
    "file_size": int,
    "duration": (int, float),
    "sample_rate": int,
    "embedding_dim": int,
    "audio_digest": str,
    "design": str,
    "design_model": str,
    "design_seed": int,
    "language": str,
    "voice": str,
    "about": str,
    "since": int,
}
