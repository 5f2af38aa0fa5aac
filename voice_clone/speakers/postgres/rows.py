"""A speaker in the database: its row, and its clip and artifacts as bytes, with what shows that they belong together.

PostgreSQL does not check what it reads from the disk, and a damaged index leads to the row of another speaker. So a row
is served only if its record has the name whose SHA-256 the row has, and the row's generation. An entry that
is added to the record when a speaker is written shows the rest:

    row   token   the token of the speaker's bytes
          clip    SHA-256 of the first clip; null if there is none
          clips   SHA-256 of the others, by their styles
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
AMENDED = ("generation", "loudness", "artifacts", "beside", "cosines", "since")  # what a change of artifacts replaces


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


def written(record: SpeakerRecord, token: UUID, clips: Mapping[str, bytes]) -> str:
    """The record as it stands in the database. `clips`: SHA-256 of the clips' bytes, by their styles."""
    values = json.loads(record.to_json())
    others = {style: digest.hex() for style, digest in clips.items()}
    values["row"] = {"token": str(token), "clip": others.pop("", None)} | ({"clips": others} if others else {})
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
    if "styles" in kept:
        styles = kept["styles"].items()
        kept["styles"] = {s: {name: clip[name] for name in clip if name not in AMENDED} for s, clip in styles}
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


def name_of(artifact: ArtifactId, fingerprint: str) -> BlobName:
    """The name of artifacts."""
    of_style = f"~{artifact.style}/" if artifact.style else ""
    return BlobName(of_style + artifact.model_type, artifact.mode, fingerprint)


def name_of_clip(style: str) -> BlobName:
    """The name of the clip of a style."""
    return BlobName(f"~{style}" if style else "", "", "")


def digests_of_clips(row: Any) -> dict[str, str | None]:
    """The SHA-256 of clips by their styles, as `row` of a record has them; None: it has none."""
    known = row if isinstance(row, dict) else {}
    return {**known.get("clips", {}), "": known.get("clip")}


def blobs_of(
    record: SpeakerRecord, token: UUID, clips: Mapping[str, bytes], artifacts: Mapping[ArtifactId, Tensors]
) -> dict[BlobName, bytes]:
    """All bytes of a speaker. `clips`: by their styles."""
    blobs = {name_of_clip(style): clip for style, clip in clips.items()}
    for artifact, tensors in artifacts.items():
        name = name_of(artifact, record.clip(artifact.style).artifacts[artifact].fingerprint)
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
