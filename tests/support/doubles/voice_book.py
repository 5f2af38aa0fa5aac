"""Registered voices for the double of Triton: it keeps them by owner and name, as the server does."""

from __future__ import annotations

import json
from typing import Any

import grpc

from tests.support.doubles.triton_double import Failure, Server

CLIP = b"RIFF\0\0\0\0WAVE"


class VoiceBook:
    """Answers the calls for voices of a double.

    Args:
        triton: the double.
        voices: names and owners of those that are there.
    """

    def __init__(self, triton: Server, *voices: tuple[str, str]) -> None:
        self.records: dict[tuple[str, str], dict[str, Any]] = {}
        for name, owner in voices:
            self._add(name, owner)
        triton.answer = self._answer

    def _add(self, name: str, owner: str, **more: Any) -> dict[str, Any]:
        record = {"name": name, "owner": owner or None, "created_at": 1.5, "generation": 1, **more}
        self.records[owner, name] = record
        return record

    def _answer(self, inputs: dict[str, Any]) -> dict[str, bytes]:
        operation, name = inputs["operation"].decode(), inputs.get("name", b"").decode()
        options = json.loads(inputs.get("options", b"{}"))
        owner = options.get("owner") or ""
        result: dict[str, Any] = {}
        if operation == "list":
            seen = sorted((r for (of, _), r in self.records.items() if of in ("", owner)), key=lambda r: str(r["name"]))
            seen = [record for record in seen if record["name"] > options.get("after", "")]
            result = {"speakers": seen[: options.get("limit")]}
        elif operation == "upload":
            if (owner, name) in self.records and not options.get("replace"):
                raise Failure(grpc.StatusCode.ALREADY_EXISTS, "speaker_exists: it is there")
            result = self._add(name, owner, consent=inputs["consent"].decode())
        elif operation in ("get", "delete"):
            found = next((key for key in ((owner, name), ("", name)) if key in self.records), None)
            if found is None:
                raise Failure(grpc.StatusCode.NOT_FOUND, f"speaker_not_found: no voice is {name!r}")
            result = self.records[found]
            if operation == "delete":
                del self.records[found]
        return {"result": json.dumps(result).encode()}
