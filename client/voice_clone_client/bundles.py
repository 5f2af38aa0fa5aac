"""Bundles of voices that go to the server, or come from it, in parts."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from . import responses
from .errors import BrokenStream
from .sources import PART


def id_of(fields: Mapping[str, Any]) -> str | None:
    """Return the id of a bundle that goes in parts, all to one server, from the fields of an operation on voices."""
    found: str | None = fields.get("id") or (fields["name"] if "part" in fields else None)
    return found


def imported_part(name: str, index: int, part: bytes) -> dict[str, Any]:
    """Return the fields of the operation `import` for a part of a bundle. A part that is not full is the last one.

    Args:
        name: of the bundle.
    """
    more = len(part) >= PART
    return {"bundle": part, **({"name": name, "part": index, "more": more} if index or more else {})}


class ExportedBundle:
    """The requests for the parts of a bundle, and what their answers say."""

    def __init__(self, **asked: Any) -> None:
        self._asked = asked
        self.id = uuid.uuid4().hex
        self.offset = 0  # of the next part
        self.size = 1  # until the first answer
        self.digest = ""

    def fields(self) -> dict[str, Any]:
        """Return the fields of the request for the next part. After the last one the server forgets the bundle."""
        return {"id": self.id, **({"offset": self.offset} if self.offset else self._asked)}

    def skip(self) -> bool:
        """Go to the end. Returns whether the server still has the bundle."""
        kept = 0 < self.offset < self.size
        self.offset = self.size
        return kept

    def take(self, answer: Any) -> bytes:
        """Take the next part out of the answer.

        Raises:
            BrokenStream: it is empty, or of a bundle that another server made under the same id.
        """
        said, part = responses.result(answer), responses.artifacts(answer)
        if not part or said["digest"] != (self.digest or said["digest"]):
            raise BrokenStream(f"the bundle ended after {self.offset} of {self.size} bytes; export it again")
        self.size, self.digest = said["size"], said["digest"]
        self.offset += len(part)
        return part
