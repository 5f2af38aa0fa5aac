"""The answer to the question for the artifacts of a voice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from voice_clone.errors import VoiceCloneError
from voice_clone.speakers.record import ArtifactId, SpeakerRecord


@dataclass(frozen=True)
class Resolved:
    """Artifacts and where they came from.

    Attributes:
        status: `hit` from memory, `restored` from the store, `miss` from the encoder, `none` from the caller.
        record: of the speaker, in the generation served; None for an inline clip.
        artifact: the family and mode of the artifacts.
        artifacts: safetensors bytes.
        extraction_ms: the time of the encoder for this answer; 0 unless it is a miss.
        unsaved: why the store did not take them, if it did not; then they are in memory alone.
        origin: of an inline clip, see `memory.inline_origin`.
    """

    status: Literal["hit", "restored", "miss", "none"]
    record: SpeakerRecord | None
    artifact: ArtifactId
    artifacts: bytes
    fingerprint: str
    extraction_ms: float = 0.0
    unsaved: VoiceCloneError | None = None
    origin: str = ""
