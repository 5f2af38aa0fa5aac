"""Make artifacts without a waiting request: after uploads and imports, and whatever is still missing.

A voice may lack artifacts because the server stopped before they were made, because the disk was full, or because an
encoder was busy or not loaded yet. Its file has the clip, so they are made later, without a request.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from voice_clone.audio import Clip
from voice_clone.errors import Unsupported, VoiceCloneError
from voice_clone.speakers.draft import Draft
from voice_clone.speakers.encoders import Describer
from voice_clone.speakers.extraction import Extractor, Together
from voice_clone.speakers.flight import Flight, Superseded
from voice_clone.speakers.modes import Modes, mode_of_record
from voice_clone.speakers.record import ArtifactId, SpeakerRecord
from voice_clone.speakers.registry import Registry
from voice_clone.speakers.store import Made
from voice_clone.speakers.voice_states import VoiceStates

AT_ONCE = 4  # voices begun by one check

log = logging.getLogger(__name__)


class Background:
    """Begin extractions, and check every `period` seconds, until `close`, which voices lack artifacts.

    A failure that the clip itself explains is final until the voice is asked for or uploaded again. Other failures are
    tried again. A check begins after the voice at which the last check ended, so voices that fail again and again do
    not hold up others.
    """

    def __init__(
        self,
        registry: Registry,
        extractor: Extractor,
        voice_states: VoiceStates,
        describer: Describer,
        model_types: Callable[[], Iterable[str]],
        period: float,
    ) -> None:
        self._registry = registry
        self._extractor = extractor
        self._voice_states = voice_states
        self._describer = describer
        self._model_types = model_types
        self._period = period
        self._last = ""  # the key of the voice that was begun last
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="background", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop checking."""
        self._closing.set()
        self._thread.join()

    def with_artifacts(self, draft: Draft, model_types: Iterable[str], until: float) -> Draft:
        """Return a draft with the artifacts of its clip, before it replaces a speaker.

        Raises:
            InvalidArgument: no voice can be made of the clip.
            DeadlineExceeded, and the errors of the encoder.
        """
        if draft.clip is None:
            return draft
        record, made = draft.record, dict(draft.artifacts)
        for model_type in model_types:
            with contextlib.suppress(Unsupported):  # no encoder is loaded, or the family needs what was not given
                artifact = mode_of_record(self._describer.modes(model_type, until), model_type, record)
                work = partial(self._extract, artifact, draft.clip)
                made[artifact], info = self._voice_states.flights.ask(object(), work, until - time.monotonic())
                record = record.with_artifacts(artifact, info)
        return replace(draft, record=record, artifacts=made)

    def begin(
        self,
        record: SpeakerRecord,
        model_types: Iterable[str],
        clip: Clip | None = None,
        until: float | None = None,
        style: str = "",
    ) -> bool:
        """Make in the background what a new speaker lacks for these families. With `until`, wait for it.

        Args:
            clip: the speaker's clip of this `style`, if it is decoded already.

        Returns: whether there is something to make.
        """
        wanted = tuple(model_types)
        lent = None if clip is None else self._voice_states.clips.lend(clip)
        flights = []
        for each in record.clips:
            if record.clip(each).embedding_source == "audio":
                of_style, store = lent if each == style else None, partial(self._store_made, record)
                together = Together(record, each, of_style, until is None, len(wanted), store)
                flights += [self._begin(together, model_type) for model_type in wanted]
        begun = any(flight is not None for flight in flights)
        if until is None:
            return begun
        for flight in flights:
            try:
                while flight is not None:  # the first may only have asked for the modes, and answer with the next
                    result = self._voice_states.flights.wait(flight, until - time.monotonic())
                    flight = result if isinstance(result, Flight) else None
            except (VoiceCloneError, Superseded) as error:
                log.info("the voice %r is registered, but not ready: %s", record.name, error)
        self._store_made(record)  # this would wait for the late ones
        return begun

    def _store_made(self, record: SpeakerRecord) -> None:
        with contextlib.suppress(VoiceCloneError, Superseded):  # that is their state
            self._extractor.store_made(record)

    def _begin(self, together: Together, model_type: str) -> Flight[Any] | None:
        """Begin a flight that makes the artifacts, or first asks the encoder for its modes. None if there is nothing to
        make.
        """
        modes = self._describer.known_modes(model_type)
        if modes is not None:
            return self._start(together, model_type, modes)
        work = partial(self._ask_and_start, together, model_type)
        return self._fly(together, (together.style, model_type), "begin", work)

    def _ask_and_start(self, together: Together, model_type: str, flight: Flight[Any]) -> Flight[Any] | None:
        try:
            modes = self._describer.ask_modes(model_type)
            if flight.over:
                raise Superseded
        except BaseException:
            together.leave()
            raise
        return self._start(together, model_type, modes)

    def _start(self, together: Together, model_type: str, modes: Modes) -> Flight[Any] | None:
        try:
            artifact = mode_of_record(modes, model_type, together.record, style=together.style)
        except Unsupported:
            together.leave()
            return None
        if artifact in together.record.clip(together.style).artifacts:
            together.leave()
            return None
        return self._fly(together, artifact, "make", partial(self._extractor.make_or_note, together, artifact))

    def _fly(
        self, together: Together, what: tuple[str, str] | ArtifactId, step: str, work: Callable[[Flight[Any]], Any]
    ) -> Flight[Any]:
        key = (together.record.generation, what, step)
        flight = self._voice_states.flights.start(together.record.key, key, work, together.background)
        if flight.work is not work:  # another one is under way, and these do not wait for it
            together.leave()
        return flight

    def _extract(self, artifact: ArtifactId, clip: Clip, flight: Flight[Any]) -> Made:
        return self._describer.extract(artifact, clip)

    def _run(self) -> None:
        while not self._closing.wait(self._period):
            try:
                self._look()
            except Exception:
                log.exception("what voices lack could not be looked for")

    def _look(self) -> None:
        begun = 0
        model_types = tuple(self._model_types())
        records = self._registry.records()
        behind = bisect_right(records, self._last, key=lambda record: record.key)
        for record in (*records[behind:], *records[:behind]):
            lacking = [model_type for model_type in model_types if self._lacks(record, model_type)]
            if lacking and self.begin(record, lacking):
                self._last = record.key
                begun += 1
            if begun == AT_ONCE or self._closing.is_set():
                return

    def _lacks(self, record: SpeakerRecord, model_type: str) -> bool:
        """Whether artifacts for this family are missing and, as far as is known, could be made from the clip."""
        failures = self._voice_states.failures.get((record.key, record.generation), {}).copy()
        again = {artifact for artifact, failure in failures.items() if failure.state == "pending"}
        clips = {style: clip for style, clip in record.clips.items() if clip.embedding_source == "audio"}
        known = (failures.keys() | {each for clip in clips.values() for each in clip.artifacts}) - again
        return not {(model_type, style) for style in clips} <= {(each.model_type, each.style) for each in known}
