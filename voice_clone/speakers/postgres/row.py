"""A speaker's row in the database, and what shows that its columns belong together.

PostgreSQL believes what its disk says, and an index that is damaged leads to the row of another speaker. So a row is
served only if its record has the name whose SHA-256 the row has, and the row's generation. What is added to the record
when a speaker is written shows the rest:

    row   token   the token of the speaker's blobs
          clip    SHA-256 of the clip's bytes; null if there is none
          seal    SHA-256 of the record, without what a change of artifacts replaces

Servers that did not write it left it out, and leave it as it is: what is not there is not checked.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple
from uuid import UUID

from voice_clone.speakers.record import SpeakerRecord
from voice_clone.speakers.voice_file import Damaged

COLUMNS = "v.id, v.change, v.generation, v.token, v.record::text"
AMENDED = ("generation", "artifacts", "beside", "generated_at")  # fields that a change of artifacts replaces


class Row(NamedTuple):
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


def read(row: Row) -> SpeakerRecord:
    """The record of a row.

    Raises:
        Damaged: it is none, or not that of this row.
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
