"""What a starting server prepares for stored voices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from numpy.typing import NDArray

from voice_clone.lru_cache import Origin
from voice_clone.speakers.record import ArtifactId, SpeakerRecord
from voice_clone.speakers.store import KnownVoices

P = TypeVar("P")
Artifacts = Mapping[str, NDArray[Any]]

log = logging.getLogger(__name__)


def known_artifacts(
    voices: KnownVoices, artifact: ArtifactId, names: Collection[str]
) -> Iterator[tuple[SpeakerRecord, Artifacts]]:
    """Record and artifacts of each voice that has artifacts of these names, the latest first.

    Artifacts of other names were made by another version of the encoder. They are made again when they are asked for.
    """
    for record, artifacts in voices.latest(artifact):
        if artifacts.keys() >= set(names):
            yield record, artifacts


def known_prompts(
    voices: KnownVoices, artifact: ArtifactId, names: Collection[str], make: Callable[[str, Artifacts], P]
) -> Iterator[tuple[Origin, P]]:
    """A prompt of each voice that has artifacts of these names, the latest first.

    Args:
        make: transcript and artifacts of a voice -> a prompt with some text. If it raises, the artifacts belong to
            another checkpoint, and the voice is left out.
    """
    for record, artifacts in known_artifacts(voices, artifact, names):
        try:
            prompt = make(record.reference_text or "", artifacts)
        except Exception as error:  # whatever a file holds, the others serve
            log.info("a stored voice is left out of what is prepared at the start: %s", error)
            continue
        yield record.origin, prompt
