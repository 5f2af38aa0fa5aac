"""What this process knows of speakers beyond their records: artifacts, flights, failures, and the states they give.

`pending`, `processing`, `failed` and `unsupported` are never stored: pending is what is not stored, processing is what
has a flight, failed is what the last extraction after an upload raised in this process, unsupported is a family none of
whose modes gets what it needs from the record, or whose encoder says that it takes no such clip.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Literal, NamedTuple, Protocol

from voice_clone.audio import Clip
from voice_clone.errors import Unsupported
from voice_clone.speakers.config import CacheConfig
from voice_clone.speakers.encoders import Describer
from voice_clone.speakers.flight import Flights
from voice_clone.speakers.lru import ArtifactCache, CacheKey
from voice_clone.speakers.modes import NATURAL, mode_of_record
from voice_clone.speakers.name import parse_name
from voice_clone.speakers.record import ArtifactId, ArtifactState, SpeakerRecord
from voice_clone.speakers.store import Made


class Failure(NamedTuple):
    """Why artifacts could not be made, and the state that this gives them. `pending`: the clip is not the cause, so the
    server tries again by itself.
    """

    reason: str
    state: Literal["pending", "failed", "unsupported"]


class OtherProcesses(Protocol):
    """The other processes of the server that keep what they computed of voices."""

    def forget(self, voices: Collection[str]) -> None:
        """Make them drop it, by the `voice` of `SpeakerRecord.origin`, or by `inline_origin`. Never raises."""

    def kept(self, digests: bool) -> Mapping[str, Any]:
        """What each of them keeps, fit for JSON; with `digests` also that of what makes its sound, if it knows it."""


class NoOtherProcesses:
    """No other processes."""

    def forget(self, voices: Collection[str]) -> None:
        """See `OtherProcesses`."""

    def kept(self, digests: bool) -> Mapping[str, Any]:
        """See `OtherProcesses`."""
        return {}


class VoiceStates:
    """Artifacts, flights and failures of one process. All of it may be forgotten at any time.

    Args:
        other_processes: those that keep what they computed of voices.

    Attributes:
        failures: why the last extraction after an upload failed, by key and generation of the speaker.
        made: artifacts that are to be stored, by the same.
        clips: decoded clips of uploads, until their first extraction.
    """

    def __init__(self, config: CacheConfig, other_processes: OtherProcesses) -> None:
        self._other_processes = other_processes
        self.artifacts = ArtifactCache(config.max_bytes, config.max_entries, config.inline_share)
        self.flights: Flights[Any] = Flights(config.workers, config.extraction_timeout)
        self.failures: dict[tuple[str, int], dict[ArtifactId, Failure]] = {}
        self.made: dict[tuple[str, int, ArtifactId], Made] = {}
        self.clips = DecodedClips(config.max_waiting_bytes)
        self._inline_lock = threading.Lock()
        self._clip_dropped = -math.inf  # when the clip of a voice was last dropped, on the monotonic clock

    def keep_inline(self, key: CacheKey, artifacts: bytes, began: float) -> None:
        """Keep artifacts of a clip that is not registered.

        Args:
            began: when their extraction did, on the monotonic clock. If the clip of a voice was dropped since, they may
                be of that clip, and are not kept.
        """
        with self._inline_lock:
            if began > self._clip_dropped:
                self.artifacts.put("inline", key, artifacts)

    def made_of(self, record: SpeakerRecord) -> dict[ArtifactId, Made]:
        """The artifacts of a speaker that are to be stored."""
        found = tuple(self.made.items())
        return {artifact: made for (*speaker, artifact), made in found if speaker == [record.key, record.generation]}

    def drop_made(self, record: SpeakerRecord) -> None:
        """Drop the artifacts of a speaker that are to be stored."""
        for artifact in self.made_of(record):
            self.made.pop((record.key, record.generation, artifact), None)

    def forget(self, record: SpeakerRecord) -> None:
        """Drop all that belongs to a speaker that was deleted or replaced, and its clips among the inline ones."""
        self.flights.abandon(record.key)
        self.drop(record)
        parse_name.cache_clear()

    def drop(self, record: SpeakerRecord) -> None:
        """Drop what came of this generation of a speaker, in all processes; its flights go on."""
        self.failures.pop((record.key, record.generation), None)
        self.drop_made(record)
        self.artifacts.discard("registered", record.key)
        voices = [record.origin.voice]
        for clip in record.clips.values():
            for digest in clip.audio_digests:
                with self._inline_lock:
                    self._clip_dropped = time.monotonic()
                    self.artifacts.discard("inline", digest)
                voices.append(inline_origin(digest))
        self._other_processes.forget(voices)


def inline_origin(digest: str) -> str:
    """As the `voice` of `SpeakerRecord.origin`, of a clip that is not registered."""
    return f"inline-{digest}"


class DecodedClips:
    """Decoded clips that wait for an extraction, bounded in bytes. Thread-safe.

    The flights hold the clips; this class only counts them. A clip is freed as soon as its last flight is over.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._waiting: weakref.WeakSet[Clip] = weakref.WeakSet()

    def lend(self, clip: Clip) -> Clip | None:
        """The clip without its file, for a flight to hold; None if too much is waiting: then decode the stored file."""
        with self._lock:
            size = sum(each.waveform.nbytes + sum(map(len, each.takes)) for each in (*self._waiting, clip))
            if size > self._max_bytes:
                return None
            lent = replace(clip, encoded=b"")
            self._waiting.add(lent)
            return lent


class ArtifactStates:
    """The states of artifacts, derived from records, flights, failures and modes. Waits for no encoder."""

    def __init__(self, voice_states: VoiceStates, describer: Describer) -> None:
        self._voice_states = voice_states
        self._describer = describer

    def of(self, record: SpeakerRecord, model_types: Iterable[str]) -> dict[ArtifactId, ArtifactState]:
        """States of the artifacts that these families want, and of all others that are known.

        Until the modes of a family are known, they count as natural; its encoder is asked in the background.
        """
        clips = [style for style, clip in record.clips.items() if clip.embedding_source == "audio"]
        model_types = tuple(model_types) if clips else ()
        self._describer.ask_ahead(model_types)
        flights = self._voice_states.flights.of(record.key)
        keys: list[Any] = [flight.key for flight in flights if flight.running]
        # Other generations may have other styles.
        running = {what for generation, what, _ in keys if generation == record.generation}
        failures = self._voice_states.failures.get((record.key, record.generation), {}).copy()
        states: dict[ArtifactId, ArtifactState] = {}
        wanted = set()
        for style, model_type in product(clips, model_types):
            modes = self._describer.known_modes(model_type) or NATURAL
            try:
                wanted.add(mode_of_record(modes, model_type, record, style=style))
            except Unsupported as error:
                states[ArtifactId(model_type, modes.best, style)] = ArtifactState("unsupported", error.text)
        for artifact, each in self._voice_states.made_of(record).items():
            record = record.with_artifacts(artifact, each.info)
        stored = {artifact for clip in record.clips.values() for artifact in clip.artifacts}
        known = wanted | stored | set(failures) | {key for key in running if isinstance(key, ArtifactId)}
        states |= {artifact: self._state(record, artifact, artifact in running, failures) for artifact in known}
        return dict(sorted(states.items()))

    def _state(
        self, record: SpeakerRecord, artifact: ArtifactId, running: bool, failures: Mapping[ArtifactId, Failure]
    ) -> ArtifactState:
        info, known = record.clip(artifact.style).artifacts.get(artifact), self._describer.known(artifact)
        if known is not None:
            info = record.stored(artifact, known) or info
        if running:
            return ArtifactState("processing", info=info)
        if info is not None and known in (None, info.fingerprint):
            return ArtifactState("ready", info=info)
        if artifact in failures:
            reason, state = failures[artifact]
            return ArtifactState(state, f"{reason}; the server tries again" if state == "pending" else reason)
        return ArtifactState("pending", None if info is None else "made by another checkpoint of the encoder")
