"""A speaker in the database: its row, and its clip and artifacts as bytes, with what shows that they belong together.

PostgreSQL does not check what it reads from the disk, and a damaged index leads to the row of another speaker. So a row
is served only if its record has the name whose SHA-256 the row has, and the row's generation. An entry that
is added to the record when a speaker is written shows the rest:

    row   token   the token of the speaker's bytes
          clip    SHA-256 of the clip; null if there is none
          seal    SHA-256 of the record, without what a change of artifacts replaces

Clip and artifacts are stored with their SHA-256. Artifacts also say whose they are, in the metadata of their
safetensors bytes; for a clip the record has the SHA-256. Older servers do not write `row` and this metadata, and do not
change them. If they are missing, they are not checked.
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
from voice_clone.speakers.tensor_file import Damaged, metadata_of
from voice_clone.speakers.voice_file import Tensors

COLUMNS = "v.id, v.change, v.generation, v.token, v.record::text"
AMENDED = ("generation", "loudness", "artifacts", "beside")  # fields that a change of artifacts replaces


class ChangeRow(NamedTuple):
    """A speaker's newest change.

    Attributes:
        id: SHA-256 of its key.
        change: its number.
        generation: of the speaker, also if it was deleted.
        token: of its blobs.
        record: JSON. It and the token are None if the speaker was deleted.
    """

    id: bytes
    change: int
    generation: int
    token: UUID | None
    record: str | None


def id_of(key: str) -> bytes:
    """The key of a speaker as the database knows it."""
    return hashlib.sha256(key.encode()).digest()


def written(record: SpeakerRecord, token: UUID, clip: bytes | None) -> str:
    """The record as it stands in the database. `clip`: SHA-256 of the clip's bytes."""
    values = json.loads(record.to_json())
    values["row"] = {"token": str(token), "clip": None if clip is None else clip.hex()}
    values["row"]["seal"] = _seal(values)
    return json.dumps(values, ensure_ascii=False)


def read(row: ChangeRow) -> SpeakerRecord:
    """The record of a row.

    Raises:
        Damaged: it is no record, or not that of this row.
    """
    try:
        record = SpeakerRecord.from_json(row.record or "")
        values = json.loads(row.record or "")
    except Exception as error:
        raise Damaged(f"the record cannot be read: {error}") from None
    if id_of(record.key) != row.id:
        raise Damaged("the record is that of a speaker of another name")
    if record.generation != row.generation:
        raise Damaged("the record is that of another generation")
    proof = values.get("row")
    if proof is not None:
        if not isinstance(proof, dict) or proof.get("token") != str(row.token):
            raise Damaged("the bytes are those of another speaker")
        if proof.get("seal") != _seal(values):
            raise Damaged("the record is not what was written")
    return record


def _seal(values: dict[str, Any]) -> str:
    kept = {name: value for name, value in values.items() if name not in AMENDED}
    kept["row"] = {name: value for name, value in values["row"].items() if name != "seal"}
    # The database writes numbers in its own way: 1e16 comes back as a whole number.
    numbers = json.loads(json.dumps(kept), parse_int=float)
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


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
        blobs[name] = packed_artifacts(token, name, tensors)
    return blobs


def insert_blobs(connection: Connection, token: UUID, blobs: Mapping[BlobName, bytes]) -> None:
    """Write bytes of a speaker; older ones of the same name are replaced."""
    for name, data in blobs.items():
        connection.execute(_INSERT, (token, *name, data, bytes_digest(data)), prepare=True)


def bytes_digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def checked_bytes(data: bytes | None, expected: bytes | None) -> bytes:
    """The bytes.

    Raises:
        Damaged: they are not those that were written.
    """
    if data is None or bytes_digest(data) != expected:
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
    return checked_bytes(data, found)


def packed_artifacts(token: UUID, name: BlobName, tensors: Tensors) -> bytes:
    """Artifacts of the speaker whose blobs have this token."""
    return save(dict(tensors), {_OF: _of(token, name)})


def tensors_of(data: bytes, token: UUID, name: BlobName) -> dict[str, NDArray[Any]]:
    """The tensors of artifacts.

    Raises:
        Damaged: the bytes are no tensors, or are others than those of this speaker and name.
    """
    try:
        tensors = load(data)
        metadata = metadata_of(data)
    except Exception as error:
        raise Damaged(str(error)) from None
    if metadata.get(_OF) not in (None, _of(token, name)):
        raise Damaged("the artifacts are those of another speaker")
    return tensors


def _of(token: UUID, name: BlobName) -> str:
    return " ".join((str(token), *name))
