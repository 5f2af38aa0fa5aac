"""Export and import of speakers with their artifacts, and the preloaded voices of a server."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from voice_clone.audio import decode
from voice_clone.audio_file import MAX_RATE, MIME_TYPES, MIN_RATE
from voice_clone.errors import Internal, InvalidArgument, SpeakerExists, SpeakerNotFound, Unsupported, VoiceCloneError
from voice_clone.speakers import voice_file
from voice_clone.speakers.clip_report import measure
from voice_clone.speakers.config import CacheConfig
from voice_clone.speakers.draft import Draft, check_consent
from voice_clone.speakers.encoders import Describer, fault, pack_artifacts
from voice_clone.speakers.extraction import Resolved
from voice_clone.speakers.flight import Superseded
from voice_clone.speakers.modes import mode_of_record
from voice_clone.speakers.name import check_word, parse_name
from voice_clone.speakers.operations import Export, Import
from voice_clone.speakers.parsing import MAX_NOTE, MAX_SEED, MAX_TRANSCRIPT, check_text
from voice_clone.speakers.record import ArtifactId, SpeakerRecord, clip_digest
from voice_clone.speakers.registry import Registry
from voice_clone.speakers.revisions import TRIES
from voice_clone.speakers.store import Store
from voice_clone.speakers.takes import decode_all, take_of
from voice_clone.speakers.tensor_file import Damaged
from voice_clone.speakers.voice_file import audio_name, clips_of, group_artifacts, pack_bundle, unpack_bundle

MAX_PROMPT_BYTES = 16 << 20  # of a bundle that comes with a speech; a voice with its clip fits
MAX_EMBEDDING = 2**20  # values of an embedding; the family knows the exact number
MAX_CLOCK_AHEAD = 86400.0  # seconds by which another server's clock may be ahead
_DIGEST = re.compile(r"[0-9a-f]{64}")

log = logging.getLogger(__name__)


class Transfer:
    """Make bundles of registered speakers, and register the speakers of a bundle."""

    def __init__(self, registry: Registry, store: Store, describer: Describer, config: CacheConfig) -> None:
        self._registry = registry
        self._store = store
        self._describer = describer
        self._config = config

    def pack(self, export: Export, bundle: BinaryIO) -> dict[str, Any]:
        """Write the bundle of one speaker, or of all. A speaker that is deleted meanwhile is left out of all.

        Returns: what the operation answers.

        Raises:
            SpeakerNotFound: there is no speaker of that name.
            InvalidArgument: the bundle would be too large.
            Internal: a file is damaged or cannot be read.
        """
        owner, name = export.owner, export.name
        records = self._registry.records(owner) if name is None else [self._registry.find(name, owner)]
        names: list[str] = []
        digest = pack_bundle(self._files(records, export, names), len(records), bundle)
        return {"speakers": names, "size": bundle.seek(0, os.SEEK_END), "digest": digest}

    def _files(self, records: Sequence[SpeakerRecord], export: Export, names: list[str]) -> Iterator[bytes]:
        """Yield the file of each speaker, and add its name to `names`. Raises: as `pack`."""
        size = 0
        for found in records:
            try:
                record, file = self._newest(found, export)
            except SpeakerNotFound:
                if export.name is not None:
                    raise
                continue
            names.append(record.name)
            size += len(file)
            if size > self._config.max_bundle_bytes:
                raise InvalidArgument(
                    f"the bundle would be larger than {self._config.max_bundle_bytes} bytes; export voices one by one"
                )
            yield file

    def resolve(
        self, bundle: bytes, model_type: str, mode: str | None, until: float, style: str | None
    ) -> tuple[Resolved, SpeakerRecord]:
        """Return the artifacts in a bundle of one speaker, without registering it. Everything in the bundle is checked.

        Raises:
            InvalidArgument: it is too large, damaged, or made with another checkpoint; or holds more than one speaker.
            Unsupported: it has no artifacts of this family, or not in this mode.
        """
        if len(bundle) > MAX_PROMPT_BYTES:
            raise InvalidArgument(
                f"`voice_prompt` has {len(bundle)} bytes; at most {MAX_PROMPT_BYTES} are allowed. Export one voice, "
                "without its audio"
            )
        with _of("`voice_prompt`"):
            packed = unpack_bundle(bundle)
        if len(packed) != 1:
            raise InvalidArgument(f"`voice_prompt` holds {len(packed)} voices; export the one that is to speak")
        header, tensors = packed[0]
        record = header.record
        with _of("`voice_prompt`"):
            self._check_record(record)
            groups = group_artifacts(header, tensors)
        modes = self._describer.modes(model_type, until)
        artifact = mode_of_record(modes, model_type, record, mode, record.style_meant(style))
        if artifact not in groups:
            there = ", ".join(" ".join(filter(None, each)) for each in groups) or "none"
            raise Unsupported(
                f"`voice_prompt` lacks artifacts of {model_type} in mode {artifact.mode}; it has {there}. "
                "Prepare the voice and export it again"
            )
        fingerprint = record.clip(artifact.style).artifacts[artifact].fingerprint
        if self._describer.fingerprint(artifact, until) != fingerprint:
            raise InvalidArgument(
                f"`voice_prompt` was made with another checkpoint of {model_type}; "
                "export it from a server with this one"
            )
        if not self._describer.matches(artifact, groups[artifact]):
            raise InvalidArgument(f"the artifacts in `voice_prompt` are not such as {model_type} makes")
        artifacts = pack_artifacts(groups[artifact])
        return Resolved(status="none", artifact=artifact, artifacts=artifacts, fingerprint=fingerprint), record

    def unpack(self, given: Import) -> list[SpeakerRecord]:
        """Register all speakers of a bundle, or none; everything in the bundle is checked.

        The speakers become those of the owner of the operation; those of the operator keep the owners that they have.

        Raises:
            InvalidArgument: the bundle is damaged, too large, or made with another checkpoint.
            SpeakerExists, QuotaExceeded, Overloaded: as `Registry.add`.
        """
        if len(given.bundle) > self._config.max_bundle_bytes:
            raise InvalidArgument(
                f"the bundle has {len(given.bundle)} bytes; at most {self._config.max_bundle_bytes} are allowed"
            )
        drafts = self._drafts(given.bundle, given.reextract)
        if given.owner is not None:
            drafts = [replace(draft, record=_given_to(given.owner, draft.record)) for draft in drafts]
        return self._registry.add_all(drafts, given.replace, given.allowance)

    def preload(self, folder: Path) -> None:
        """Register the voices of the bundles in a folder under names that are free: the operator's, and shared.

        The folder is only read, so it may be part of an image or a volume mounted read-only. A name that is taken stays
        with the voice that has it. A file that is no bundle, or too large, is logged and left out. Hidden files
        are not read.

        Raises:
            InvalidArgument: there is no such folder.
        """
        try:
            paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        except OSError:
            raise InvalidArgument("the setting preloaded_voices names no folder that can be read") from None
        registered, most = 0, self._config.max_bundle_bytes
        for path in paths:
            try:
                if path.stat().st_size > most:
                    raise InvalidArgument(f"it is larger than {most} bytes")
                registered += len(self._add_free(path.read_bytes()))
            except (VoiceCloneError, OSError) as error:
                log.error("the voices in %r are not loaded: %s", path.name, error)
        log.info("registered %d voices that come with this server", registered)

    def _add_free(self, bundle: bytes) -> list[SpeakerRecord]:
        """Register the speakers of a bundle whose names are free, as the operator's and shared: all of them, or none.

        Raises:
            InvalidArgument: the bundle is damaged, or made with another checkpoint and without audio.
            Overloaded: as `Registry.add`.
        """
        drafts = [
            replace(draft, record=replace(draft.record, owner=None, shared=True))
            for draft in self._drafts(bundle, reextract=True)
        ]
        while True:
            free = [draft for draft in drafts if self._registry.is_free(draft.record.key)]
            try:
                return self._registry.add_all(free)
            except SpeakerExists:  # another server of the fleet registered one meanwhile
                if all(self._registry.is_free(draft.record.key) for draft in free):
                    raise

    def _drafts(self, bundle: bytes, reextract: bool) -> list[Draft]:
        drafts = [self._draft(header, tensors, reextract) for header, tensors in unpack_bundle(bundle)]
        if len({draft.record.key for draft in drafts}) != len(drafts):
            raise InvalidArgument("the bundle of voices holds a name twice")
        return drafts

    def _newest(self, record: SpeakerRecord, export: Export) -> tuple[SpeakerRecord, bytes]:
        """Return the newest speaker of this record's name, which may have been replaced, and its file.

        Raises:
            SpeakerNotFound: it was deleted meanwhile.
            Internal: its file is damaged or cannot be read.
        """
        tries = 0  # of one generation
        while tries < TRIES:
            try:
                return record, self._file(record, export.include_audio)
            except Superseded:
                self._registry.refresh()
            newer = self._registry.find(parse_name(record.name), export.owner)
            tries = tries + 1 if newer.generation == record.generation else 0
            record = newer
        raise Internal(f"the stored voice {record.name!r} is damaged; upload it again")

    def _file(self, record: SpeakerRecord, include_audio: bool) -> bytes:
        try:
            with self._registry.holding(record) as now:
                header, tensors = self._store.read_all(now)
            voice_file.verify(header, tensors)
        except Damaged:
            raise Internal(
                f"the file of the voice {record.name!r} is damaged; upload it again, with the option `replace`"
            ) from None
        if not include_audio:
            for style in header.record.clips:
                tensors.pop(audio_name(style), None)
        return voice_file.pack(header.record, tensors, header.digests)

    def _draft(self, header: voice_file.Header, tensors: dict[str, NDArray[Any]], reextract: bool) -> Draft:
        clips, record = clips_of(header, tensors), header.record
        with _of(f"the voice {record.name!r} of the bundle"):
            self._check_record(record)
        artifacts = {
            artifact: group
            for artifact, group in group_artifacts(header, tensors).items()
            if self._fits(record, artifact, group, reextract and artifact.style in clips)
        }
        checked = {style: self._checked(record, style, clips.get(style), artifacts) for style in record.clips}
        first = checked.pop("")
        # A style is its voice's: what else a bundle says of it would count as said by this server.
        styles = {
            style: replace(clip, name=first.name, generation=0, since=None, owner=None, shared=False)
            for style, clip in checked.items()
        }
        return Draft(replace(first, since=None, styles=styles), clips, artifacts)

    def _checked(
        self, record: SpeakerRecord, style: str, audio: bytes | None, artifacts: Collection[ArtifactId]
    ) -> SpeakerRecord:
        """The record of a clip of the bundle, with what is measured of it, and with these artifacts alone."""
        given = record.clip(style)
        kept = {artifact: info for artifact, info in given.artifacts.items() if artifact in artifacts}
        if audio is None and not kept:
            which = f" in the style {style}" if style else ""
            raise InvalidArgument(f"the voice {record.name!r}{which} comes with neither audio nor artifacts")
        if audio is not None:
            with _of(f"the voice {record.name!r} of the bundle"):
                clip = decode_all(audio, given.takes, self._config.clip)
                others = [decode(file, self._config.clip) for file in clip.takes]
            report = measure(clip)
            given = replace(
                given,
                mime_type=clip.mime_type,
                file_size=len(clip.encoded),
                duration=round(clip.seconds, 6),
                sample_rate=clip.sample_rate,
                audio_digest=clip_digest(clip),
                takes=tuple(take_of(other, take.number) for other, take in zip(others, given.takes, strict=True)),
                report=report if given.report is None else report.uploaded(given.report),
            )
        return replace(given, artifacts=kept, beside={})

    def _check_record(self, record: SpeakerRecord) -> None:
        """Check texts, consent, how a voice was designed, and the figures of clips that need not be in the bundle."""
        for clip in record.styles.values():
            self._check_record(clip)
        if record.kind != "voice":
            raise InvalidArgument(f"the bundle's record {record.name!r} is no voice")
        check_text("reference_text", record.reference_text, MAX_TRANSCRIPT)
        check_text("consent", record.consent, MAX_NOTE)
        check_text("description", record.description, MAX_NOTE)
        check_text("design", record.design, MAX_NOTE)
        if record.design_model is not None:
            check_word("design_model", record.design_model)
        check_consent(record.consent, self._config)
        limits, now = self._config.clip, time.time()
        numbers = (
            (record.duration, limits.min_seconds, limits.max_seconds),
            (record.sample_rate, MIN_RATE, MAX_RATE),
            (record.file_size, 1, limits.max_bytes),
            (record.embedding_dim, 1, MAX_EMBEDDING),
            (record.design_seed, 0, MAX_SEED),
            (record.created_at, 0, now + MAX_CLOCK_AHEAD),
            *((take.duration, limits.min_seconds, limits.max_seconds) for take in record.takes),
            (record.audio_bytes, 0, 2 * limits.max_bytes),
            *((info.generated_at, 0, now + MAX_CLOCK_AHEAD) for info in record.artifacts.values()),
        )
        texts = (
            record.mime_type is None or record.mime_type in MIME_TYPES.values(),
            all(_DIGEST.fullmatch(digest) for digest in record.audio_digests),
        )
        if not all(texts) or not all(value is None or least <= value <= most for value, least, most in numbers):
            raise InvalidArgument(
                f"the bundle's record names a clip or a design of {record.name!r} that this server could not have taken"
            )

    def _fits(
        self, record: SpeakerRecord, artifact: ArtifactId, tensors: dict[str, NDArray[Any]], may_drop: bool
    ) -> bool:
        """Whether artifacts of a bundle fit this server. Artifacts that do not fit are dropped and made again.

        Raises:
            InvalidArgument: they do not fit and must not be dropped.
        """
        try:
            described = self._describer.describe(artifact)
        except Unsupported:  # no such encoder is loaded: the rest is checked at their first use
            if any(fault(tensor, {}) for tensor in tensors.values()):
                raise InvalidArgument(f"the artifacts of {record.name!r} hold NaN or infinity") from None
            return True
        if described.fingerprint == record.clip(artifact.style).artifacts[artifact].fingerprint:
            if not self._describer.matches(artifact, tensors):
                raise InvalidArgument(f"the artifacts of {record.name!r} are not such as {artifact.model_type} makes")
            return True
        if may_drop:
            return False
        raise InvalidArgument(
            f"the voice {record.name!r} was made with another checkpoint of {artifact.model_type}; import it with the "
            "option `reextract` (it needs the audio in the bundle), or load that checkpoint"
        )


@contextmanager
def _of(what: str) -> Iterator[None]:
    """Name the speaker whose record an error is about, because names in the error are no inputs of this request."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error}") from None


def _given_to(owner: str, record: SpeakerRecord) -> SpeakerRecord:
    """Return the record as this owner's. It stays shared only if it was the owner's before."""
    return replace(record, owner=owner, shared=record.shared and record.owner == owner)
