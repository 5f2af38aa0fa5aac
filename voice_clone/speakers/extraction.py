"""Artifacts of a speaker or a clip: from memory, else from the store, else from the encoder.

The states of artifacts are derived, never stored (see `voice_states.ArtifactStates`). So a state can neither go stale
nor outlive a crash, and work that fails, runs too long or is killed leaves the state that was there before.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from voice_clone.audio import Clip
from voice_clone.errors import Internal, InvalidArgument, Overloaded, Unsupported, VoiceCloneError
from voice_clone.lru_cache import scope_of
from voice_clone.speakers.config import CacheConfig
from voice_clone.speakers.encoders import Describer, pack_artifacts
from voice_clone.speakers.flight import Flight, Superseded
from voice_clone.speakers.lru import CacheKey
from voice_clone.speakers.modes import mode_of_clip, mode_of_embedding, mode_of_record
from voice_clone.speakers.name import SpeakerName
from voice_clone.speakers.operations import ResolveClip
from voice_clone.speakers.record import ArtifactId, ArtifactInfo, SpeakerRecord, clip_digest
from voice_clone.speakers.registry import Registry
from voice_clone.speakers.revisions import TRIES
from voice_clone.speakers.store import Made, Store
from voice_clone.speakers.takes import decode_all
from voice_clone.speakers.tensor_file import Damaged
from voice_clone.speakers.voice_states import Failure, VoiceStates, inline_origin

FIRST_PAUSE, LONGEST_PAUSE = 0.025, 0.1  # seconds between two checks whether another server is done
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """Artifacts and where they came from.

    Attributes:
        status: `hit` from memory, `restored` from the store, `miss` from the encoder, `none` from the caller.
        artifact: the family and mode of the artifacts.
        artifacts: safetensors bytes.
        fingerprint: of the encoder that made them.
        extraction_ms: the time of the encoder for this answer; 0 unless it is a miss.
        origin: the key under which other processes cache what they compute from the artifacts; "": they cache nothing,
            since no request can make them forget it.
        scope: see `Origin`.
    """

    status: Literal["hit", "restored", "miss", "none"]
    artifact: ArtifactId
    artifacts: bytes
    fingerprint: str
    extraction_ms: float = 0.0
    origin: str = ""
    scope: str = ""


@dataclass(frozen=True, kw_only=True)
class ResolvedSpeaker(Resolved):
    """Artifacts of a registered speaker.

    Attributes:
        record: in the generation served.
        unsaved: why the store did not take them, if it did not; then they are in memory alone.
    """

    record: SpeakerRecord
    unsaved: VoiceCloneError | None = None


class Together:
    """Extractions of one speaker that begin together. What they make is stored when the last one is over.

    Args:
        record: of the speaker.
        style: of its clip.
        clip: that clip, decoded, if it is in memory.
        background: whether no caller waits.
        count: the number of families.
        store: called when the last of them is over.
    """

    def __init__(
        self,
        record: SpeakerRecord,
        style: str,
        clip: Clip | None,
        background: bool,
        count: int,
        store: Callable[[], object],
    ) -> None:
        self.record = record
        self.style = style
        self.clip = clip
        self.background = background
        self._left = count
        self._store = store
        self._lock = threading.Lock()

    def leave(self) -> None:
        """Note that the extraction for one family is over, or that there is none."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._store()


class Extractor:
    """Finds or makes artifacts; one extraction at a time for each of them, by all servers of a store. Thread-safe.

    `mode` None stands for the best mode of the family that the voice allows; `until` is when to stop waiting, on the
    monotonic clock.
    """

    def __init__(
        self, registry: Registry, store: Store, voice_states: VoiceStates, describer: Describer, config: CacheConfig
    ) -> None:
        self._registry = registry
        self._store = store
        self._voice_states = voice_states
        self._describer = describer
        self._limits = config.clip
        self._patience = config.extraction_timeout / 2  # seconds to wait for another server, which may be paused

    def registered(
        self,
        name: SpeakerName,
        model_type: str,
        mode: str | None,
        use_cache: bool,
        until: float,
        saved: bool = False,
        style: str | None = None,
    ) -> ResolvedSpeaker:
        """Return the artifacts of a registered speaker.

        Args:
            saved: try again to save what is in memory alone.
            style: of the clip, as `SpeakerRecord.style_meant` reads it.
            use_cache: if False, artifacts are neither taken from memory nor kept there; the store is used all the same.

        Raises:
            SpeakerNotFound, DeadlineExceeded, Internal, and the errors of the encoder.
            Unsupported: the family has no such mode, or the speaker lacks what it needs.
        """
        tried: list[int] = []
        while True:
            record = self._found(name, tried)
            modes = self._describer.modes(model_type, until)
            artifact = mode_of_record(modes, model_type, record, mode, record.style_meant(style))
            try:
                return self._of_record(record, artifact, use_cache, until, saved)
            except Superseded:
                self._registry.refresh()  # deleted or replaced meanwhile, here or by another server: find it again

    def rebuild(
        self, name: SpeakerName, model_type: str, mode: str | None, until: float, style: str | None = None
    ) -> ResolvedSpeaker:
        """Extract again, as a new generation; the old one serves until then. Raises: as `registered`."""
        tried: list[int] = []
        while True:
            record = self._found(name, tried)
            found = record.style_meant(style)
            if record.clip(found).embedding_source == "direct":
                raise InvalidArgument("this voice was uploaded as a `speaker_embedding`: there is nothing to rebuild")
            artifact = mode_of_record(self._describer.modes(model_type, until), model_type, record, mode, found)
            work = partial(self._rebuild, record, artifact)
            flight = self._voice_states.flights.start(record.key, (record.generation, artifact, "rebuild"), work)
            try:
                resolved: ResolvedSpeaker = self._voice_states.flights.wait(flight, until - time.monotonic())
                return resolved
            except Superseded:
                self._registry.refresh()

    def _found(self, name: SpeakerName, tried: list[int]) -> SpeakerRecord:
        """Return the speaker of that name, for another try; its generation is added to those that were tried.

        Raises:
            SpeakerNotFound: there is none.
            Internal: the store keeps contradicting the record: what it has of this speaker is damaged.
        """
        record = self._registry.find(name)
        if tried.count(record.generation) == TRIES:
            log.error("what the voice store has of %r does not belong to its record", record.name)
            raise Internal(f"the stored voice {record.name!r} is damaged; upload it again, with the option `replace`")
        tried.append(record.generation)
        return record

    def inline(self, clip: Clip, given: ResolveClip, model_type: str, until: float) -> Resolved:
        """Return the artifacts of a clip that is not registered; they are kept in memory alone, for its owner.

        Raises: as `registered`; InvalidArgument if the clip lacks what the mode needs.
        """
        artifact = mode_of_clip(self._describer.modes(model_type, until), model_type, given.reference_text, given.mode)
        digest, scope = clip_digest(clip), scope_of(given.owner)
        if given.cache:
            fingerprint = self._describer.fingerprint(artifact, until)
            key = CacheKey(artifact.model_type, digest, 0, fingerprint, artifact.mode, scope)
            found = self._voice_states.artifacts.get("inline", key)
            if found is not None:
                return Resolved(
                    status="hit",
                    artifact=artifact,
                    artifacts=found,
                    fingerprint=fingerprint,
                    origin=inline_origin(digest),
                    scope=scope,
                )
        work = partial(self._extract_inline, clip, digest, artifact, scope, given.cache)
        key_of_flight = (digest, artifact, scope) if given.cache else object()
        resolved: Resolved = self._voice_states.flights.ask(key_of_flight, work, until - time.monotonic())
        return resolved

    def of_embedding(
        self, embedding: NDArray[np.float32], model_type: str, mode: str | None, until: float
    ) -> tuple[ArtifactId, dict[str, NDArray[Any]], ArtifactInfo]:
        """Return artifacts of a speaker embedding. Raises: as `mode_of_embedding` and `Describer.of_embedding`."""
        artifact = mode_of_embedding(self._describer.modes(model_type, until), model_type, mode)
        return artifact, *self._describer.of_embedding(artifact, embedding, until)

    def refresh(
        self, name: SpeakerName, model_type: str, mode: str | None, until: float, style: str | None = None
    ) -> None:
        """Ask the encoder again for its modes, and for its fingerprint in the mode that serves this speaker."""
        modes = self._describer.modes(model_type, until, again=True)
        record = self._registry.find(name)
        artifact = mode_of_record(modes, model_type, record, mode, record.style_meant(style))
        self._describer.fingerprint(artifact, until, again=True)

    def _of_record(
        self, record: SpeakerRecord, artifact: ArtifactId, use_cache: bool, until: float, saved: bool
    ) -> ResolvedSpeaker:
        fingerprint = self._describer.fingerprint(artifact, until)
        if use_cache and (record.stored(artifact, fingerprint) is not None or not saved):
            found = self._voice_states.artifacts.get("registered", _key(record, artifact, fingerprint))
            if found is not None:
                return _resolved("hit", record, artifact, found, fingerprint)
        work = partial(self._produce, record, artifact, use_cache, None)
        flight = self._voice_states.flights.start(record.key, (record.generation, artifact, "make"), work)
        resolved: ResolvedSpeaker = self._voice_states.flights.wait(flight, until - time.monotonic())
        if saved and resolved.unsaved is None and resolved.record.stored(artifact, fingerprint) is None:
            now = self._registry.current(record)  # of an upload, the last flight stores for all
            return self._of_record(now, artifact, use_cache, until, saved)
        return resolved

    def _produce(
        self,
        record: SpeakerRecord,
        artifact: ArtifactId,
        use_cache: bool,
        together: Together | None,
        flight: Flight[Any],
    ) -> ResolvedSpeaker:
        fingerprint = self._describer.describe(artifact).fingerprint
        key = _key(record, artifact, fingerprint)
        found = self._voice_states.artifacts.peek("registered", key) if use_cache else None
        if found is not None and self._registry.latest(record).stored(artifact, fingerprint) is not None:
            return _resolved("hit", record, artifact, found, fingerprint)  # another flight has just ended
        made = self._voice_states.made_of(record).get(artifact)
        if made is None and found is not None:  # the store did not take them before
            made = Made(load(found), ArtifactInfo(fingerprint, 0.0, time.time()))
        if made is not None and made.info.fingerprint == fingerprint:
            return self._saved(record, artifact, made, use_cache, together, flight)
        until, pause = time.monotonic() + self._patience, FIRST_PAUSE
        while True:
            with self._registry.holding(record) as now:
                stored = self._from_store(now, artifact, fingerprint)
            if stored is not None:
                return self._keep(now, artifact, stored, "restored", ArtifactInfo(fingerprint, 0.0), use_cache)
            with self._store.claim(now, artifact, fingerprint) as granted:
                if granted and self._changed_by_another(now, artifact, fingerprint):
                    continue  # another server has just made them
                if granted or time.monotonic() >= until:
                    lent = None if together is None else together.clip
                    clip = lent or self._stored_clip(now, artifact)
                    made = self._describer.extract(artifact, clip)
                    return self._saved(now, artifact, made, use_cache, together, flight)
            time.sleep(pause)
            pause = min(2.0 * pause, LONGEST_PAUSE)
            self._changed_by_another(now, artifact, fingerprint)

    def _changed_by_another(self, record: SpeakerRecord, artifact: ArtifactId, fingerprint: str) -> bool:
        """Whether another server has stored such artifacts since.

        Raises:
            Superseded: the speaker was deleted or replaced.
        """
        with contextlib.suppress(Overloaded):  # the store cannot be reached; storing the artifacts decides
            self._registry.refresh()
        return self._registry.current(record).stored(artifact, fingerprint) != record.stored(artifact, fingerprint)

    def _saved(
        self,
        record: SpeakerRecord,
        artifact: ArtifactId,
        made: Made,
        use_cache: bool,
        together: Together | None,
        flight: Flight[Any],
    ) -> ResolvedSpeaker:
        """Keep new artifacts, and store them if there is room; speech does not need that. `together` stores its own."""
        with self._registry.holding(record):
            if flight.over:
                raise Superseded
            self._voice_states.made[record.key, record.generation, artifact] = made
        unsaved = None
        if together is None or not self._store.writes_whole:
            try:
                record = self.store_made(record, lambda: not flight.over)
            except VoiceCloneError as error:
                unsaved = error
        return replace(self._keep(record, artifact, made.tensors, "miss", made.info, use_cache), unsaved=unsaved)

    def store_made(self, record: SpeakerRecord, guard: Callable[[], bool] = lambda: True) -> SpeakerRecord:
        """Store what was made of a speaker, in one write, and return its newest record.

        Raises:
            Superseded: as `Registry.publish`.
            VoiceCloneError: the store did not take them. The error becomes their state, since no caller may be there.
        """
        made: dict[ArtifactId, Made] = {}
        try:
            with self._registry.holding(record) as now:
                made = self._voice_states.made_of(record)
                try:
                    newer = self._registry.publish(record, made, guard=guard) if made else now
                finally:
                    self._voice_states.drop_made(record)
        except VoiceCloneError as error:
            for artifact in made:
                self._note(record, artifact, error)
            raise
        for artifact in made:
            self._voice_states.failures.get((record.key, record.generation), {}).pop(artifact, None)
        return newer

    def _note(self, record: SpeakerRecord, artifact: ArtifactId, error: Exception) -> None:
        """Make a failure the state of these artifacts, since there may be no caller that waits."""
        reason = error.text if isinstance(error, VoiceCloneError) else "the voice could not be extracted"
        failure = Failure(reason, _state_after(error))
        with self._registry.holding(record):
            self._voice_states.failures.setdefault((record.key, record.generation), {})[artifact] = failure

    def make_or_note(self, together: Together, artifact: ArtifactId, flight: Flight[Any]) -> ResolvedSpeaker:
        """Make the artifacts of a speaker that has none, as the work of a flight; a failure becomes their state."""
        record = together.record
        try:
            return self._produce(record, artifact, True, together, flight)
        except Superseded:
            raise
        except Exception as error:
            self._note(record, artifact, error)
            raise
        finally:
            together.leave()

    def _rebuild(self, record: SpeakerRecord, artifact: ArtifactId, flight: Flight[Any]) -> ResolvedSpeaker:
        clip = self._stored_clip(record, artifact)
        made = self._describer.extract(artifact, clip)
        with self._registry.holding(record):
            all_made = {**self._voice_states.made_of(record), artifact: made}
            newer = self._registry.publish(record, all_made, renew=True, guard=lambda: not flight.over)
        self._voice_states.drop(record)
        return self._keep(newer, artifact, made.tensors, "miss", made.info, use_cache=True)

    def _extract_inline(
        self, clip: Clip, digest: str, artifact: ArtifactId, scope: str, use_cache: bool, flight: Flight[Any]
    ) -> Resolved:
        began = time.monotonic()
        tensors, info = self._describer.extract(artifact, clip)
        packed = pack_artifacts(tensors)
        if use_cache:
            key = CacheKey(artifact.model_type, digest, 0, info.fingerprint, artifact.mode, scope)
            self._voice_states.keep_inline(key, packed, began)
        return Resolved(
            status="miss",
            artifact=artifact,
            artifacts=packed,
            fingerprint=info.fingerprint,
            extraction_ms=info.extraction_ms,
            origin=inline_origin(digest),
            scope=scope,
        )

    def _keep(
        self,
        record: SpeakerRecord,
        artifact: ArtifactId,
        tensors: Mapping[str, NDArray[Any]],
        status: Literal["restored", "miss"],
        info: ArtifactInfo,
        use_cache: bool,
    ) -> ResolvedSpeaker:
        packed = pack_artifacts(tensors)
        if use_cache:
            with contextlib.suppress(Superseded), self._registry.holding(record):
                self._voice_states.artifacts.put("registered", _key(record, artifact, info.fingerprint), packed)
        milliseconds = info.extraction_ms if status == "miss" else 0.0
        return _resolved(status, record, artifact, packed, info.fingerprint, milliseconds)

    def _from_store(
        self, record: SpeakerRecord, artifact: ArtifactId, fingerprint: str
    ) -> dict[str, NDArray[Any]] | None:
        """Return the stored artifacts, or None if there are none of this encoder or they are damaged."""
        if record.stored(artifact, fingerprint) is None:
            return None
        try:
            tensors = self._store.read_artifacts(record, artifact, fingerprint)
            if tensors is None or self._describer.matches(artifact, tensors):
                return tensors
            raise Damaged("they are not such as the encoder makes")
        except Damaged as error:
            log.warning("artifacts of %r are damaged and are made again: %s", record.name, error)
            return None

    def _stored_clip(self, record: SpeakerRecord, artifact: ArtifactId) -> Clip:
        try:
            with self._registry.holding(record) as now:
                audio = self._store.read_audio(now, artifact.style)
        except Damaged as error:
            if not record.styles and not set(record.artifacts) - {artifact}:  # the file holds nothing else of use
                self._registry.set_aside(record, str(error))
                self._voice_states.drop(record)
            raise Internal(
                f"the stored clip of the voice {record.name!r} is damaged; upload it again, with the option `replace`"
            ) from None
        if audio is None:
            raise Unsupported(
                f"the voice {record.name!r} was registered without audio, and not for {artifact.model_type} in mode "
                f"{artifact.mode} with this checkpoint; upload a clip of it"
            )
        return decode_all(audio, record.clip(artifact.style).takes, self._limits)


def _state_after(error: Exception) -> Literal["pending", "failed", "unsupported"]:
    """Return the state of artifacts that could not be made."""
    if isinstance(error, Unsupported):
        return "unsupported"
    own = isinstance(error, InvalidArgument) or not isinstance(error, VoiceCloneError)
    return "failed" if own else "pending"


def _resolved(
    status: Literal["hit", "restored", "miss"],
    record: SpeakerRecord,
    artifact: ArtifactId,
    packed: bytes,
    fingerprint: str,
    extraction_ms: float = 0.0,
) -> ResolvedSpeaker:
    return ResolvedSpeaker(
        status=status,
        record=record,
        artifact=artifact,
        artifacts=packed,
        fingerprint=fingerprint,
        extraction_ms=extraction_ms,
        origin=record.origin.voice,
        scope=record.origin.scope,
    )


def _key(record: SpeakerRecord, artifact: ArtifactId, fingerprint: str) -> CacheKey:
    return CacheKey(
        artifact.model_type, record.key, record.generation, fingerprint, artifact.mode, style=artifact.style
    )
