"""Reads speakers from a directory that another process owns."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from voice_clone.speakers import voice_file
from voice_clone.speakers.disk.store import VOICES
from voice_clone.speakers.record import ArtifactId, SpeakerRecord

MAX_VOICES = 1024  # that are looked at, whatever lies there

log = logging.getLogger(__name__)


class KnownInDirectory:
    """The `KnownVoices` of a directory. The owner replaces files as a whole and may do so meanwhile."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def latest(self, artifact: ArtifactId) -> Iterator[tuple[SpeakerRecord, dict[str, NDArray[Any]]]]:
        """As `KnownVoices.latest`."""
        for path in _latest_first(self._directory / VOICES)[:MAX_VOICES]:
            try:
                header, tensors = voice_file.read_artifacts(path, artifact)
            except (OSError, voice_file.Damaged) as error:
                log.debug("skipped a voice on disk: %s", error)
                continue
            if tensors:
                yield header.record, tensors

    def origins(self) -> set[str]:
        """As `KnownVoices.origins`."""
        found = set()
        for path in _latest_first(self._directory / VOICES):
            with contextlib.suppress(OSError, voice_file.Damaged):
                found.add(voice_file.read_header(path).record.origin.voice)
        return found


def _latest_first(folder: Path) -> list[Path]:
    found: list[tuple[int, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # there may be none yet
        for entry in entries:
            with contextlib.suppress(OSError):  # it has just gone
                if entry.name.endswith(".safetensors") and entry.is_file(follow_symlinks=False):
                    found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
    return [Path(path) for _, path in sorted(found, reverse=True)]
