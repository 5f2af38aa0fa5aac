"""What a gateway that takes jobs is asked, and a double of Triton that speaks them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import httpx2

from tests.support.doubles.triton_double import FAMILY, Failure, Server, chunk
from tests.support.waiting import until

JOBS = "/v1/audio/jobs"
DIGEST = "voice-1"
ASKED = {"input": "One is here. Two is there.", "voice": "Ada", "response_format": "wav"}
ENDED = ("completed", "failed", "cancelled")


class Talking:
    """What the double says; voices and synthesizer can change."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.digest: str | None = DIGEST
        self.synthesizer = "s1"
        self.finish = ["stop"]
        self.failures: list[Exception] = []
        self.pause = 0.0
        self.playing = threading.Event()
        server.answer, server.play = self.answer, self.play
        server.synthesizers = {FAMILY: "s1"}

    def answer(self, inputs: dict[str, Any]) -> dict[str, bytes]:
        voice = {"name": "Ada", "digest": self.digest, "generation": 1, "owner": None}
        if inputs["operation"] == b"get" and self.digest is None:
            raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice is registered under the name 'Ada'")
        listed = {"speakers": [voice] if self.digest else [], "count": 1, "presets": []}
        return {"result": json.dumps(voice if inputs["operation"] == b"get" else listed).encode()}

    def play(self, context: grpc.ServicerContext) -> Iterator[Any]:
        self.playing.set()
        time.sleep(self.pause)
        if self.failures:
            raise self.failures.pop(0)
        finish = self.finish.pop(0) if len(self.finish) > 1 else self.finish[0]
        info = {"synthesizer": self.synthesizer, "voice_digest": self.digest, "voice": "Ada"}
        yield chunk(0, info=info)
        yield chunk(1, final=True, info={**info, "finish_reason": finish})


def ended(http: httpx2.Client, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    answer = http.post(JOBS, json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    until(lambda: http.get(answer.headers["location"], headers=headers).json()["status"] in ENDED)
    found: dict[str, Any] = http.get(f"{JOBS}/{job['id']}", headers=headers).json()
    return found
