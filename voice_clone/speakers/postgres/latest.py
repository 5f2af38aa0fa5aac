"""Reads speakers of a database that other processes change."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from voice_clone.errors import VoiceCloneError
from voice_clone.speakers.disk.store import MAX_VOICES
from voice_clone.speakers.postgres import blobs
from voice_clone.speakers.postgres.row import COLUMNS, Row, read
from voice_clone.speakers.postgres.sessions import Session, Watchdog
from voice_clone.speakers.record import ArtifactId, SpeakerRecord
from voice_clone.speakers.voice_file import Damaged

SECONDS = 10.0  # for which the database is waited for
_IDS = "SELECT id FROM voice_clone.voice WHERE record IS NOT NULL ORDER BY change DESC LIMIT %s"
_ORIGINS = "SELECT record->>'generation' FROM voice_clone.voice WHERE record IS NOT NULL"
_ONE = f"""
    SELECT {COLUMNS}, b.fingerprint, b.data, b.digest FROM voice_clone.voice v
    JOIN voice_clone.blob b USING (token) WHERE v.id = %s AND b.model_type = %s AND b.mode = %s
"""

log = logging.getLogger(__name__)


class KnownInDatabase:
    """The `KnownVoices` of a database.

    Args:
        conninfo: the address, checked; its role need only read.
    """

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def latest(self, artifact: ArtifactId) -> Iterator[tuple[SpeakerRecord, dict[str, NDArray[Any]]]]:
        """As `KnownVoices.latest`."""
        watchdog = Watchdog()
        session = Session(self._conninfo, watchdog)
        try:
            with session.use(SECONDS) as connection:
                ids = connection.execute(_IDS, (MAX_VOICES,), binary=True).fetchall()
            for (found,) in ids:
                with session.use(SECONDS) as connection:
                    rows: list[Any] = connection.execute(_ONE, (found, *artifact), binary=True).fetchall()
                yield from _read(rows, artifact)
        except VoiceCloneError as error:
            log.warning("nothing more is made ready from the voice store: %s", error)
        finally:
            session.close()
            watchdog.close()

    def origins(self) -> set[str]:
        """As `KnownVoices.origins`.

        Raises:
            VoiceCloneError: the database cannot be asked.
        """
        watchdog = Watchdog()
        session = Session(self._conninfo, watchdog)
        try:
            with session.use(SECONDS) as connection:
                return {str(found) for (found,) in connection.execute(_ORIGINS).fetchall()}
        finally:
            session.close()
            watchdog.close()


def _read(rows: list[Any], artifact: ArtifactId) -> Iterator[tuple[SpeakerRecord, dict[str, NDArray[Any]]]]:
    """The speaker with the artifacts that were made last, if they can be read."""
    for *columns, fingerprint, data, digest in rows:
        try:
            row = Row(*columns)
            record = read(row)
            info = record.artifacts.get(artifact)
            if info is not None and info.fingerprint == fingerprint and row.token is not None:
                name = blobs.BlobName(*artifact, fingerprint)
                yield record, blobs.tensors_of(blobs.checked(data, digest), row.token, name)
        except Damaged as error:
            log.debug("skipped a voice of the store: %s", error)
