"""Artifacts of a speaker or a clip: from memory, else from the speaker's file, else from the encoder.

`pending`, `processing` and `failed` are never written down: pending is what is not on disk, processing is what has a
flight, failed is what the last extraction after an upload said to this process. So a state can neither go stale nor
outlive a crash, and work that fails, runs too long or is killed leaves the state that was there before.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from voice_clone.audio import Clip, decode
from voice_clone.errors import Internal, InvalidArgument, Unsupported, VoiceCloneError
from voice_clone.speakers.encoding import Describer, pack_artifacts
from voice_clone.speakers.flight import Flight, Flights, Superseded
from voice_clone.speakers.lru import ArtifactCache, CacheKey
from voice_clone.speakers.record import ArtifactId, ArtifactInfo, ArtifactState, SpeakerRecord, clip_digest
from voice_clone.speakers.registry import Registry
from voice_clone.speakers.request import CacheConfig
from voice_clone.speakers.store import SpeakerStore
from voice_clone.speakers.voice_file import Damaged

log = logging.getLogger(__name__)
_NOBODY = ""  # owner of flights that belong to no speaker; no speaker's key is empty


@dataclass(frozen=True)
class Resolved:
    """Artifacts and where they came from.

    Attributes:
        status: `hit` from memory, `restored` from disk, `miss` from the encoder.
        record: of the speaker, in the generation served; None for an inline clip.
        artifacts: safetensors bytes.
        extraction_ms: what the encoder took for this answer; 0 unless it is a miss.
    """

    status: Literal["hit", "restored", "miss"]
    record: SpeakerRecord | None
    artifacts: bytes
    fingerprint: str
    extraction_ms: float = 0.0


class Memory:
    """What a process knows of speakers beyond their records: artifacts, flights, failures. All may be forgotten."""

    def __init__(self, config: CacheConfig) -> None:
        self.artifacts = ArtifactCache(config.max_bytes, config.max_entries, config.inline_share)
        self.flights: Flights[Any] = Flights(config.workers, config.extraction_timeout)
        self.failures: dict[str, dict[ArtifactId, str]] = {}  # by speaker key

    def forget(self, record: SpeakerRecord) -> None:
        """Drop all that belongs to a speaker who is gone, and its clip if somebody sent the same inline."""
        self.artifacts.discard("registered", record.key)
        if record.audio_digest is not None:
            self.artifacts.discard("inline", record.audio_digest)
        self.failures.pop(record.key, None)
        self.flights.abandon(record.key)


class Extractor:
    """Finds or makes artifacts; one extraction at a time for each of them. Thread-safe."""

    def __init__(
        self, registry: Registry, store: SpeakerStore, memory: Memory, describer: Describer, config: CacheConfig
    ) -> None:
        self._registry = registry
        self._store = store
        self._memory = memory
        self._describer = describer
        self._limits = config.clip

    def registered(self, name: str, model_type: str, mode: str | None, use_cache: bool, until: float) -> Resolved:
        """Artifacts of a registered speaker; `mode` None takes its natural one.

        Args:
            use_cache: False neither asks nor fills the memory; the speaker's file serves as ever.
            until: on the monotonic clock.

        Raises:
            SpeakerNotFound, DeadlineExceeded, Unsupported, Internal, and what the encoder raises.
        """
        while True:
            record = self._registry.find(name)
            artifact = ArtifactId(model_type, mode or record.natural_mode)
            try:
                return self._of_record(record, artifact, use_cache, until)
            except Superseded:
                continue  # deleted or replaced while we waited: look again

    def rebuild(self, name: str, model_type: str, mode: str | None, until: float) -> Resolved:
        """Extract anew, as a new generation of the speaker; the old one serves until that is done. Raises: as above."""
        while True:
            record = self._registry.find(name)
            if record.embedding_source == "direct":
                raise InvalidArgument("this voice was uploaded as a speaker_embedding: there is nothing to rebuild")
            artifact = ArtifactId(model_type, mode or record.natural_mode)
            work = partial(self._rebuild, record, artifact)
            flight = self._memory.flights.start(record.key, (record.generation, artifact, "rebuild"), work)
            try:
                resolved: Resolved = self._memory.flights.wait(flight, until - time.monotonic())
                return resolved
            except Superseded:
                continue

    def inline(self, clip: Clip, artifact: ArtifactId, use_cache: bool, until: float) -> Resolved:
        """Artifacts of a clip that is not registered, kept in memory alone. Raises: as above."""
        digest = clip_digest(clip)
        if use_cache:
            key = CacheKey(artifact.model_type, digest, 0, self.fingerprint(artifact, until), artifact.mode)
            found = self._memory.artifacts.get("inline", key)
            if found is not None:
                return Resolved("hit", None, found, key.fingerprint)
        work = partial(self._extract_inline, clip, digest, artifact, use_cache)
        flight = self._memory.flights.start(_NOBODY, (digest, artifact) if use_cache else object(), work)
        resolved: Resolved = self._memory.flights.wait(flight, until - time.monotonic())
        return resolved

    def of_embedding(
        self, embedding: NDArray[np.float32], artifact: ArtifactId, until: float
    ) -> tuple[dict[str, NDArray[Any]], ArtifactInfo]:
        """Artifacts of a ready speaker embedding. Raises: as `Describer.of_embedding`."""
        self.fingerprint(artifact, until)
        return self._describer.of_embedding(artifact, embedding)

    def start(self, record: SpeakerRecord, artifact: ArtifactId, background: bool) -> Flight[Any]:
        """Begin; a failure is kept as the state of these artifacts. `background`: nobody waits for it yet."""
        work = partial(self._produce_or_note, record, artifact)
        return self._memory.flights.start(record.key, (record.generation, artifact, "make"), work, background)

    def fingerprint(self, artifact: ArtifactId, until: float, anew: bool = False) -> str:
        """Of the encoder; it is asked once, and again if `anew`."""
        known = self._describer.known(artifact)
        if known is not None and not anew:
            return known
        flight = self._memory.flights.start(
            _NOBODY, ("describe", artifact, anew), lambda _: self._describer.describe(artifact, anew).fingerprint
        )
        fingerprint: str = self._memory.flights.wait(flight, until - time.monotonic())
        return fingerprint

    def states(self, record: SpeakerRecord, wanted: set[ArtifactId]) -> dict[ArtifactId, ArtifactState]:
        """How far a speaker's artifacts are: those wanted, and all others of which something is known."""
        flights = self._memory.flights.of(record.key)
        running = {flight.key[1] for flight in flights if flight.running}  # type: ignore[index]  # keys made above
        failures = self._memory.failures.get(record.key, {}).copy()
        known = wanted | set(record.artifacts) | running | set(failures)
        return {artifact: self._state(record, artifact, running, failures) for artifact in sorted(known)}

    def _state(
        self, record: SpeakerRecord, artifact: ArtifactId, running: set[ArtifactId], failures: Mapping[ArtifactId, str]
    ) -> ArtifactState:
        info = record.artifacts.get(artifact)
        if artifact in running:
            return ArtifactState("processing", info=info)
        if info is not None and self._describer.known(artifact) in (None, info.fingerprint):
            return ArtifactState("ready", info=info)
        if artifact in failures:
            return ArtifactState("failed", failures[artifact])
        return ArtifactState("pending", None if info is None else "made by another checkpoint of the encoder")

    def _of_record(self, record: SpeakerRecord, artifact: ArtifactId, use_cache: bool, until: float) -> Resolved:
        fingerprint = self.fingerprint(artifact, until)
        if use_cache:
            found = self._memory.artifacts.get("registered", _key(record, artifact, fingerprint))
            if found is not None:
                return Resolved("hit", record, found, fingerprint)
        work = partial(self._produce, record, artifact, use_cache)
        flight = self._memory.flights.start(record.key, (record.generation, artifact, "make"), work)
        resolved: Resolved = self._memory.flights.wait(flight, until - time.monotonic())
        return resolved

    def _produce(self, record: SpeakerRecord, artifact: ArtifactId, use_cache: bool, flight: Flight[Any]) -> Resolved:
        fingerprint = self._describer.describe(artifact).fingerprint
        found = self._memory.artifacts.peek("registered", _key(record, artifact, fingerprint)) if use_cache else None
        if found is not None:  # another flight has just ended
            return Resolved("hit", record, found, fingerprint)
        with self._registry.holding(record) as now:
            stored = self._from_disk(now, artifact, fingerprint)
        if stored is not None:
            return self._keep(now, artifact, stored, "restored", now.artifacts[artifact], use_cache)
        clip = self._stored_clip(now, artifact)
        tensors, info = self._describer.extract(artifact, clip.waveform, clip.sample_rate)
        newer = self._registry.publish(now, artifact, tensors, info, guard=lambda: not flight.over)
        self._memory.failures.get(record.key, {}).pop(artifact, None)
        return self._keep(newer, artifact, tensors, "miss", info, use_cache)

    def _produce_or_note(self, record: SpeakerRecord, artifact: ArtifactId, flight: Flight[Any]) -> Resolved:
        """As `_produce`; its failure becomes the state of these artifacts, for there may be nobody to tell."""
        try:
            return self._produce(record, artifact, True, flight)
        except Superseded:
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, VoiceCloneError) else "the voice could not be extracted"
            with self._registry.holding(record):
                self._memory.failures.setdefault(record.key, {})[artifact] = reason
            raise

    def _rebuild(self, record: SpeakerRecord, artifact: ArtifactId, flight: Flight[Any]) -> Resolved:
        clip = self._stored_clip(record, artifact)
        generation = self._store.next_generation()
        tensors, info = self._describer.extract(artifact, clip.waveform, clip.sample_rate)
        newer = self._registry.publish(record, artifact, tensors, info, generation, lambda: not flight.over)
        self._memory.artifacts.discard("registered", record.key)
        self._memory.failures.get(record.key, {}).pop(artifact, None)
        return self._keep(newer, artifact, tensors, "miss", info, use_cache=True)

    def _extract_inline(
        self, clip: Clip, digest: str, artifact: ArtifactId, use_cache: bool, flight: Flight[Any]
    ) -> Resolved:
        tensors, info = self._describer.extract(artifact, clip.waveform, clip.sample_rate)
        packed = pack_artifacts(tensors)
        if use_cache:
            key = CacheKey(artifact.model_type, digest, 0, info.fingerprint, artifact.mode)
            self._memory.artifacts.put("inline", key, packed)
        return Resolved("miss", None, packed, info.fingerprint, info.extraction_ms)

    def _keep(
        self,
        record: SpeakerRecord,
        artifact: ArtifactId,
        tensors: Mapping[str, NDArray[Any]],
        status: Literal["restored", "miss"],
        info: ArtifactInfo,
        use_cache: bool,
    ) -> Resolved:
        packed = pack_artifacts(tensors)
        if use_cache:
            with contextlib.suppress(Superseded), self._registry.holding(record):
                self._memory.artifacts.put("registered", _key(record, artifact, info.fingerprint), packed)
        extraction_ms = info.extraction_ms if status == "miss" else 0.0
        return Resolved(status, record, packed, info.fingerprint, extraction_ms)

    def _from_disk(
        self, record: SpeakerRecord, artifact: ArtifactId, fingerprint: str
    ) -> dict[str, NDArray[Any]] | None:
        """The stored artifacts; None if there are none of this encoder, or they are damaged."""
        info = record.artifacts.get(artifact)
        if info is None or info.fingerprint != fingerprint:
            return None
        try:
            return self._store.read_artifacts(record, artifact)
        except Damaged as error:
            log.warning("artifacts of %r are damaged and are made again: %s", record.name, error)
            return None

    def _stored_clip(self, record: SpeakerRecord, artifact: ArtifactId) -> Clip:
        try:
            with self._registry.holding(record) as now:
                audio = self._store.read_audio(now)
        except Damaged as error:
            if not set(record.artifacts) - {artifact}:  # nothing else of it is of use
                self._registry.set_aside(record, str(error))
                self._memory.artifacts.discard("registered", record.key)
                self._memory.failures.pop(record.key, None)
            raise Internal(f"the stored clip of the voice {record.name!r} is damaged; upload it again") from None
        if audio is None:
            raise Unsupported(
                f"the voice {record.name!r} was registered without audio, and not for {artifact.model_type} in mode "
                f"{artifact.mode} with this checkpoint; upload a clip of it"
            )
        return decode(audio, self._limits)


def _key(record: SpeakerRecord, artifact: ArtifactId, fingerprint: str) -> CacheKey:
    return CacheKey(artifact.model_type, record.key, record.generation, fingerprint, artifact.mode)
