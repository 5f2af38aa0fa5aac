"""The forms in which the audio of a speech is sent: the bytes of a file, or events with pieces of it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from voice_clone_words.words import Word

from ..audio import Encoder
from ..http.errors import HTTPFailure
from .audited import finish_reason, usage


class Form:
    """The bytes of a file as they are. Other forms are subclasses.

    Args:
        whole: answer with the complete file, whose header is exact, when it is made.
        timed: the answer has the times of words.
    """

    def __init__(self, whole: bool = False, timed: bool = False) -> None:
        self.whole = whole
        self.timed = timed
        self._words: list[Word] = []

    def know(self, words: Sequence[Word]) -> None:
        """The next words and their times, for the next piece or the end. A whole file has all of them."""
        self._words += words

    def known(self) -> list[Word]:
        """The words that were not reported yet."""
        words, self._words = self._words, []
        return words

    def media_type(self, encoder: Encoder) -> str:
        return encoder.media_type

    def headers(self, request_id: str) -> Mapping[str, str]:
        """Further headers of the answer."""
        return {}

    def piece(self, encoder: Encoder, index: int, data: bytes) -> bytes:
        """The body of a piece of the file; of a whole one the only one."""
        return data

    def end(self, info: Mapping[str, Any], warnings: Sequence[str]) -> bytes:
        """The end of a body that is complete."""
        return b""

    def broken(self, failed: HTTPFailure, error: Exception) -> bytes | None:
        """The end of a body that breaks off; None: the connection is closed, which every client distinguishes from an
        end."""
        return None


class Events(Form):
    """Server-sent events, as the OpenAI API has them.

    Args:
        timed: each event has the words that are known since the one before.
    """

    def __init__(self, timed: bool = False) -> None:
        super().__init__(timed=timed)

    def media_type(self, encoder: Encoder) -> str:
        return "text/event-stream; charset=utf-8"

    def piece(self, encoder: Encoder, index: int, data: bytes) -> bytes:
        return _event(
            "speech.audio.delta",
            {
                "audio": base64.b64encode(data).decode(),
                "response_format": encoder.format.name,
                "sample_rate": encoder.sample_rate,
                "index": index,
                **self._told(),
            },
        )

    def end(self, info: Mapping[str, Any], warnings: Sequence[str]) -> bytes:
        warned = {"warnings": warnings} if warnings else {}
        done = {"usage": usage(info), "finish_reason": info.get("finish_reason"), "info": info, **warned}
        return _event("speech.audio.done", {**done, **self._told()})

    def _told(self) -> Mapping[str, Any]:
        return {"words": [transcribed(word) for word in self.known()]} if self.timed else {}

    def broken(self, failed: HTTPFailure, error: Exception) -> bytes | None:
        detail = {**failed.body()["error"], "code": failed.status_code, "partial_audio": True, "action": "discard"}
        return _event("speech.audio.error", {"error": detail | {"finish_reason": finish_reason(error)}})


def transcribed(word: Word) -> dict[str, Any]:
    """A word as OpenAI's transcriptions have it, and what they lack."""
    times = {"start": round(word.start, 4), "end": round(word.end, 4)}
    return {"word": word.text, **times, "estimated": word.estimated, "span": word.span}


def _event(kind: str, values: Mapping[str, Any]) -> bytes:
    """One server-sent event of the OpenAI API."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **values})}\n\n".encode()
