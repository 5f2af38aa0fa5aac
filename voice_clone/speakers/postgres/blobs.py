"""Clips and artifacts as bytes in the database, each with its SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from numpy.typing import NDArray
from safetensors.numpy import load, save

from voice_clone.speakers.disk.voice_file import Damaged, Tensors
from voice_clone.speakers.postgres.sessions import Connection
from voice_clone.speakers.record import ArtifactId, SpeakerRecord

_INSERT = """
    INSERT INTO voice_clone.blob (token, model_type, mode, fingerprint, data, digest) VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (token, model_type, mode, fingerprint) DO UPDATE SET data = EXCLUDED.data, digest = EXCLUDED.digest
"""


class BlobName(NamedTuple):
    """Which bytes of a speaker: an artifact by an encoder's fingerprint."""

    model_type: str
    mode: str
    fingerprint: str


CLIP = BlobName("", "", "")


def blobs_of(
    record: SpeakerRecord, audio: bytes | None, artifacts: Mapping[ArtifactId, Tensors]
) -> dict[BlobName, bytes]:
    """All bytes of a speaker."""
    blobs = {} if audio is None else {CLIP: audio}
    for artifact, tensors in artifacts.items():
        blobs[BlobName(*artifact, record.artifacts[artifact].fingerprint)] = save(dict(tensors))
    return blobs


def insert(connection: Connection, token: UUID, blobs: Mapping[BlobName, bytes]) -> None:
    """Write them; older ones of the same name are replaced."""
    for name, data in blobs.items():
        connection.execute(_INSERT, (token, *name, data, digest(data)), prepare=True)


def digest(data: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(data).digest()


def checked(data: bytes, expected: bytes) -> bytes:
    """The bytes.

    Raises:
        Damaged: they are not those that were written.
    """
    if digest(data) != expected:
        raise Damaged("the bytes in the database are not those that were written")
    return data


def tensors_of(data: bytes) -> dict[str, NDArray[Any]]:
    """The tensors of artifacts.

    Raises:
        Damaged: the bytes are no tensors.
    """
    try:
        return load(data)
    except Exception as error:
        raise Damaged(str(error)) from None
