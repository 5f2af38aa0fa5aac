"""Reads speakers from a directory that another process owns."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from voice_clone.speakers.disk import voice_file
from voice_clone.speakers.disk.store import VOICES
from voice_clone.speakers.record import ArtifactId, SpeakerRecord

log = logging.getLogger(__name__)


def latest_artifacts(directory: Path, artifact: ArtifactId) -> Iterator[tuple[SpeakerRecord, dict[str, NDArray[Any]]]]:
    """These artifacts of every speaker on disk that has them, the newest file first.

    The owner replaces files as a whole and may do so meanwhile. A file that cannot be read is skipped.

    Yields: the record of the speaker, and its tensors under the names that the encoder gave them.
    """
    for path in _latest_first(directory / VOICES):
        try:
            header, tensors = voice_file.read_artifacts(path, artifact)
        except (OSError, voice_file.Damaged) as error:
            log.info("skipped a voice on disk: %s", error)
            continue
        if tensors:
            yield header.record, tensors


def _latest_first(folder: Path) -> list[Path]:
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
        entries.sort(key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    except OSError:  # there is none yet, or a file has just gone
        return []
    return [Path(entry.path) for entry in entries if entry.name.endswith(".safetensors")]
