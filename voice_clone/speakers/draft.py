"""Drafts are the records that uploads would register. All checks come before the first change."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from voice_clone.audio import Clip, ClipLimits, check_audible, decode
from voice_clone.errors import InvalidArgument
from voice_clone.speakers.clip_report import measure, trim_silence
from voice_clone.speakers.config import CacheConfig
from voice_clone.speakers.operations import KeepDictionary, RecordConsent, SetAlias, Upload, UploadClip, UploadEmbedding
from voice_clone.speakers.record import ArtifactId, ArtifactInfo, EmbeddingSource, SpeakerRecord, clip_digest
from voice_clone.speakers.take import Take
from voice_clone.speakers.takes import of_file as errors_of_file
from voice_clone.speakers.takes import split, take_of
from voice_clone.speakers.voice_file import Header, Tensors, clips_of, group_artifacts, verify

_NO_GENERATION = 0  # until the registry assigns one


@dataclass(frozen=True, eq=False)
class Draft:
    """A speaker that may be registered.

    Attributes:
        record: without a generation.
        clips: the bytes of the clips' files by their styles; none for an embedding.
        artifacts: the artifacts that are ready.
        clip: the decoded clip, if the first extraction may use it.
    """

    record: SpeakerRecord
    clips: Mapping[str, bytes]
    artifacts: Mapping[ArtifactId, Tensors]
    clip: Clip | None = None


def of_clip(upload: UploadClip, limits: ClipLimits) -> Draft:
    """Make the draft of a speaker from a clip, without the silence at its ends if the upload asks for that.

    Of several recordings the best is the clip: the first if there is a transcript, which is its own, else that with the
    fewest warnings and the most speech. The others are its takes.

    Raises:
        InvalidArgument: a recording is not allowed, or has a warning and the upload is strict.
    """
    files = split(upload.audio, upload.takes[1:])
    if len(files) == 1:
        record, clip = _of_recording(upload, upload.audio, upload.reference_text, limits)
        return Draft(record, {"": clip.encoded}, {}, clip)
    if len(upload.audio) > 2 * limits.max_bytes:
        raise InvalidArgument(f"the `audio` has {len(upload.audio)} bytes; at most {2 * limits.max_bytes} are allowed")
    found = list[tuple[SpeakerRecord, Take, bytes]]()
    for number, file in enumerate(files, 1):
        with errors_of_file(number, len(files)):
            record, clip = _of_recording(upload, file, upload.reference_text if number == 1 else None, limits)
        found.append((record, take_of(clip, number), clip.encoded))
    if upload.reference_text is None:
        found.sort(key=lambda each: (len(each[0].warnings()), -each[1].speech_seconds))
    (record, _, first), *others = found[0], *sorted(found[1:], key=lambda each: each[1].number)
    clip = replace(decode(first, limits), takes=tuple(encoded for _, _, encoded in others))
    record = replace(record, takes=tuple(take for _, take, _ in others))
    return Draft(record, {"": b"".join((first, *clip.takes))}, {}, clip)


def _of_recording(
    upload: UploadClip, audio: bytes, reference_text: str | None, limits: ClipLimits
) -> tuple[SpeakerRecord, Clip]:
    """The record of a speaker of whom there is this file alone. Raises: as `of_clip`."""
    clip = _decoded(audio, limits)
    start = end = 0.0
    if upload.trim_silence:
        clip, start, end = trim_silence(clip, limits)
    record = _record(
        upload,
        "audio",
        consent=upload.consent,
        description=upload.description,
        reference_text=reference_text,
        **_of_file(clip),
        design=upload.design,
        design_model=upload.design_model,
        design_seed=upload.design_seed,
        report=measure(clip).trimmed(start, end),
        shared=upload.shared,
    )
    if upload.strict:
        _refuse_warnings(record)
    return record, clip


def with_style(stored: Draft, style: str, draft: Draft | None) -> Draft:
    """Make the draft of a speaker with another clip of a style, or with a further one, and with its other clips as
    they are.

    Args:
        stored: all that there is of the speaker.
        draft: as of a speaker of that clip; None: the clip goes.

    Raises:
        InvalidArgument: it would have too many.
    """
    stored = replace(stored, record=replace(stored.record, since=stored.record.since or stored.record.generation))
    clips = {each: clip for each, clip in stored.clips.items() if each != style}
    artifacts = {each: tensors for each, tensors in stored.artifacts.items() if each.style != style}
    if draft is None:
        styles = {each: clip for each, clip in stored.record.styles.items() if each != style}
        return Draft(replace(stored.record, styles=styles), clips, artifacts)
    infos = {each._replace(style=style): info for each, info in draft.record.artifacts.items()}
    made = {each._replace(style=style): tensors for each, tensors in draft.artifacts.items()}
    record = stored.record.with_clip(style, replace(draft.record, owner=None, shared=False, artifacts=infos))
    return Draft(record, {**clips, style: draft.clips[""]}, {**artifacts, **made}, draft.clip)


def of_file(header: Header, tensors: Tensors) -> Draft:
    """The draft of a speaker as its file has it.

    Raises:
        Damaged: a tensor is not what was written.
        InvalidArgument: the record lists other artifacts.
    """
    verify(header, tensors)
    return Draft(header.record, clips_of(header, tensors), group_artifacts(header, tensors))


def of_embedding(upload: UploadEmbedding, artifact: ArtifactId, tensors: Tensors, info: ArtifactInfo) -> Draft:
    """Make the draft of a speaker from an uploaded embedding, from which `tensors` were made."""
    record = _record(
        upload,
        "direct",
        consent=upload.consent,
        description=upload.description,
        embedding_dim=upload.embedding.size,
        shared=upload.shared,
        artifacts={artifact: info},
    )
    return Draft(record, {}, {artifact: tensors})


def of_consent(given: RecordConsent, audio: bytes, limits: ClipLimits) -> Draft:
    """The recording of a consent.

    Raises:
        InvalidArgument: the clip could not be uploaded.
    """
    clip = _decoded(audio, limits)
    record = _record(given, "consent", description=given.description, **_of_file(clip), language=given.language)
    return Draft(record, {"": clip.encoded}, {})


def _of_file(clip: Clip) -> dict[str, Any]:
    """Return the record's fields about a clip's file."""
    return {
        "mime_type": clip.mime_type,
        "file_size": len(clip.encoded),
        "duration": round(clip.seconds, 6),
        "sample_rate": clip.sample_rate,
        "audio_digest": clip_digest(clip),
    }


def of_alias(given: SetAlias) -> Draft:
    """Make the draft of an alias. An alias of the operator is for all who may use its speaker."""
    return Draft(_record(given, "alias", shared=given.owner is None, voice=given.voice.text), {}, {})


def _record(
    given: Upload | RecordConsent | SetAlias | KeepDictionary, source: EmbeddingSource, **fields: Any
) -> SpeakerRecord:
    return SpeakerRecord(
        name=given.name.text,
        generation=_NO_GENERATION,
        created_at=time.time(),
        embedding_source=source,
        owner=given.owner,
        **fields,
    )


def _decoded(audio: bytes, limits: ClipLimits) -> Clip:
    clip = decode(audio, limits)
    check_audible(clip)
    return clip


def of_dictionary(given: KeepDictionary) -> Draft:
    """A new dictionary."""
    content = given.content
    record = _record(given, "dictionary", file_size=len(content or b""), about=given.about)
    return Draft(record, {} if content is None else {"": content}, {})


def check_consent(consent: str | None, config: CacheConfig) -> None:
    """Check that the speaker consented, where the server demands it.

    Raises:
        InvalidArgument: there is no consent.
    """
    if config.require_consent and consent is None:
        raise InvalidArgument("this server demands `consent`: say how the speaker agreed")


def _refuse_warnings(record: SpeakerRecord) -> None:
    """Refuse a clip that has warnings; the error lists all of them."""
    found = [f"{warning.code}: {warning.message}" for warning in record.warnings()]
    if found:
        raise InvalidArgument(f"the clip is refused (`strict`). {'; '.join(found)}")
