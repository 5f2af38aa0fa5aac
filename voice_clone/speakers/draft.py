"""Drafts: what a caller uploads becomes a speaker's record. All checks come before the first change."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voice_clone.audio import Clip, ClipLimits, check_audible, decode
from voice_clone.errors import InvalidArgument
from voice_clone.speakers.disk.voice_file import Tensors
from voice_clone.speakers.name import parse_name
from voice_clone.speakers.record import ArtifactId, ArtifactInfo, SpeakerRecord, clip_digest
from voice_clone.speakers.report import measure, trim_silence
from voice_clone.speakers.request import CacheConfig, Request, check_text, required_name

MAX_TRANSCRIPT = 4096  # characters
MAX_NOTE = 1024  # characters of a consent or a description
_NO_GENERATION = 0  # until the registry assigns one


@dataclass(frozen=True, eq=False)
class Draft:
    """A speaker that may be registered.

    Attributes:
        record: without a generation.
        audio: the bytes of the clip's file, if there is one.
        artifacts: those that are ready.
        clip: the decoded clip, where it may serve the first extraction.
    """

    record: SpeakerRecord
    audio: bytes | None
    artifacts: Mapping[ArtifactId, Tensors]
    clip: Clip | None = None


def of_clip(request: Request, audio: bytes, limits: ClipLimits) -> Draft:
    """A speaker uploaded as a clip: with the option `trim_silence` without the silence at its ends.

    Raises:
        InvalidArgument: the name, a text or the clip is not allowed, or has a warning and the option `strict` is set.
    """
    texts = _texts(request)
    clip = decode(audio, limits)
    check_audible(clip)
    start = end = 0.0
    if request.options.get("trim_silence"):
        clip, start, end = trim_silence(clip, limits)
    record = SpeakerRecord(
        generation=_NO_GENERATION,
        created_at=time.time(),
        embedding_source="audio",
        mime_type=clip.mime_type,
        file_size=len(clip.encoded),
        duration=round(clip.seconds, 6),
        sample_rate=clip.sample_rate,
        audio_digest=clip_digest(clip),
        report=measure(clip).trimmed(start, end),
        **texts,
    )
    if request.options.get("strict"):
        _refuse_warnings(record)
    return Draft(record, clip.encoded, {}, clip)


def of_embedding(request: Request, artifact: ArtifactId, tensors: Tensors, info: ArtifactInfo) -> Draft:
    """A speaker uploaded as a ready embedding, from which `tensors` were made.

    Raises:
        InvalidArgument: the name or a text is not allowed.
    """
    if request.reference_text is not None:
        raise InvalidArgument("a ready speaker_embedding allows no reference_text; leave it out, or send audio")
    for option in ("strict", "trim_silence"):
        if option in request.options:
            raise InvalidArgument(f"a ready speaker_embedding allows no option {option}; leave it out, or send audio")
    record = SpeakerRecord(
        generation=_NO_GENERATION,
        created_at=time.time(),
        embedding_source="direct",
        embedding_dim=None if request.speaker_embedding is None else request.speaker_embedding.size,
        artifacts={artifact: info},
        **_texts(request),
    )
    return Draft(record, None, {artifact: tensors})


def check_texts(source: Request | SpeakerRecord) -> dict[str, Any]:
    """The texts that go with a speaker.

    Raises:
        InvalidArgument: one is blank or too long.
    """
    return {
        "reference_text": check_text("reference_text", source.reference_text, MAX_TRANSCRIPT),
        "consent": check_text("consent", source.consent, MAX_NOTE),
        "description": check_text("description", source.description, MAX_NOTE),
    }


def check_consent(consent: str | None, config: CacheConfig) -> None:
    """Check that the speaker consented, where the server demands it.

    Raises:
        InvalidArgument: there is no consent.
    """
    if config.require_consent and consent is None:
        raise InvalidArgument(
            "this server demands consent: say in consent how the speaker agreed "
            "(voice-clone: --consent TEXT; Python: consent=TEXT)"
        )


def _refuse_warnings(record: SpeakerRecord) -> None:
    """Refuse a clip that has warnings; tells all of them."""
    told = [f"{warning.code}: {warning.message}" for warning in record.warnings()]
    if told:
        raise InvalidArgument(f"the clip is refused (strict). {'; '.join(told)}")


def _texts(request: Request) -> dict[str, Any]:
    whose = {"owner": request.owner, "shared": request.options.get("shared", False)}
    return {"name": parse_name(required_name(request)).text, **whose, **check_texts(request)}
