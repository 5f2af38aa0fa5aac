"""What other processes may know of the speakers on disk: a look at the directory, which another process owns."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from voice_clone.speakers import voice_file
from voice_clone.speakers.record import ArtifactId, SpeakerRecord
from voice_clone.speakers.store import VOICES

log = logging.getLogger(__name__)


def latest_artifacts(directory: Path, artifact: ArtifactId) -> Iterator[tuple[SpeakerRecord, dict[str, NDArray[Any]]]]:
    """These artifacts of every speaker on disk that has them, the file written last first.

    Files are replaced whole, so the owner may be at work meanwhile. What cannot be read is left to the owner to judge.

    Yields: what is known of the speaker, and {name that the encoder gave: tensor}.
    """
    for path in _latest_first(directory / VOICES):
        try:
            header, tensors = voice_file.read_artifacts(path, artifact)
        except (OSError, voice_file.Damaged) as error:
            log.info("a voice on disk is passed over: %s", error)
            continue
        if tensors:
            yield header.record, tensors


def _latest_first(folder: Path) -> list[Path]:
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
        entries.sort(key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    except OSError:  # none yet, or one has just gone
        return []
    return [Path(entry.path) for entry in entries if entry.name.endswith(".safetensors")]
