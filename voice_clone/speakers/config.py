"""The limits of the speaker cache; every part of it reads them."""

from __future__ import annotations

from dataclasses import dataclass, field

from voice_clone.audio import ClipLimits


@dataclass(frozen=True)
class CacheConfig:
    """Limits of the cache.

    Attributes:
        max_bytes, max_entries: of the artifacts in memory, both pools together; 0 disables the memory.
        inline_share: the part of both that inline clips may use; registered speakers may use all of it.
        max_speakers: the limit of registered speakers.
        clip: limits of a reference clip.
        max_bundle_bytes: the largest bundle exported or imported.
        require_consent: whether a speaker without consent is refused.
        extraction_timeout: seconds that one extraction may take.
        workers: the number of extractions at once.
        max_waiting_bytes: samples of uploaded clips that may wait in memory for their extraction.
        finish_seconds: between two looks for voices whose artifacts could not be made or saved when they came.
    """

    max_bytes: int = 512 << 20
    max_entries: int = 1024
    inline_share: float = 0.25
    max_speakers: int = 1000
    clip: ClipLimits = field(default_factory=ClipLimits)
    max_bundle_bytes: int = 512 << 20
    require_consent: bool = False
    extraction_timeout: float = 60.0
    workers: int = 4
    max_waiting_bytes: int = 64 << 20
    finish_seconds: float = 30.0
