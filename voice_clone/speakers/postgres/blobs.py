"""Clips and artifacts as bytes in the database, each with its SHA-256.

Artifacts also say whose they are, in the metadata of their safetensors bytes: a damaged index may lead to those of
another speaker, which are whole. For a clip the record has the SHA-256 (see `row`). Older servers did not write this.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from numpy.typing import NDArray
from safetensors.numpy import load, save

from voice_clone.speakers.postgres.sessions import Connection
from voice_clone.speakers.record import ArtifactId, SpeakerRecord
from voice_clone.speakers.voice_file import Damaged, Tensors

_INSERT = """
    INSERT INTO voice_clone.blob (token, model_type, mode, fingerprint, data, digest) VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (token, model_type, mode, fingerprint) DO UPDATE SET data = EXCLUDED.data, digest = EXCLUDED.digest
"""
_OF = "of"  # the entry of the metadata


class BlobName(NamedTuple):
    """Which bytes of a speaker: an artifact by an encoder's fingerprint."""

    model_type: str
    mode: str
    fingerprint: str


CLIP = BlobName("", "", "")


def blobs_of(
    record: SpeakerRecord, token: UUID, audio: bytes | None, artifacts: Mapping[ArtifactId, Tensors]
) -> dict[BlobName, bytes]:
    """All bytes of a speaker."""
    blobs = {} if audio is None else {CLIP: audio}
    for artifact, tensors in artifacts.items():
        name = BlobName(*artifact, record.artifacts[artifact].fingerprint)
        blobs[name] = packed(token, name, tensors)
    return blobs


def insert(connection: Connection, token: UUID, blobs: Mapping[BlobName, bytes]) -> None:
    """Write them; older ones of the same name are replaced."""
    for name, data in blobs.items():
        connection.execute(_INSERT, (token, *name, data, digest(data)), prepare=True)


def digest(data: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(data).digest()


def checked(data: bytes | None, expected: bytes | None) -> bytes:
    """The bytes.

    Raises:
        Damaged: they are not those that were written.
    """
    if data is None or digest(data) != expected:
        raise Damaged("the bytes in the database are not those that were written")
    return data


def checked_clip(data: bytes | None, found: bytes | None, expected: str | None) -> bytes | None:
    """The clip; None if there is none.

    Args:
        found: the SHA-256 that was stored with it.
        expected: that of the record, hexadecimal; None if it has none.

    Raises:
        Damaged: it is missing, or not the one that was written.
    """
    if data is None and expected is None:
        return None
    if expected is not None and (found is None or found.hex() != expected):
        raise Damaged("the clip is missing, or is that of another speaker")
    return checked(data, found)


def packed(token: UUID, name: BlobName, tensors: Tensors) -> bytes:
    """Artifacts of the speaker whose blobs have this token."""
    return save(dict(tensors), {_OF: _of(token, name)})


def tensors_of(data: bytes, token: UUID, name: BlobName) -> dict[str, NDArray[Any]]:
    """The tensors of artifacts.

    Raises:
        Damaged: the bytes are no tensors, or are others than those of this speaker and name.
    """
    try:
        tensors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}
    except Exception as error:
        raise Damaged(str(error)) from None
    if metadata.get(_OF) not in (None, _of(token, name)):
        raise Damaged("the artifacts are those of another speaker")
    return tensors


def _of(token: UUID, name: BlobName) -> str:
    return " ".join((str(token), *name))
