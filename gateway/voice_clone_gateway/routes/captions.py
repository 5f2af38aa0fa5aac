"""POST /dev/captioned_speech: a text as audio and the times of its words, as Kokoro-FastAPI answers it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic import model_validator

from ..audio import Encoder
from ..compatibility import translate
from ..http.auth import guarded
from ..schemas import SpeechRequest
from ..speech.forms import Form
from ..speech.response import SpeechResponse

router = APIRouter(route_class=guarded("speak"))


class CaptionedRequest(SpeechRequest):
    """The body of a speech. `stream` false answers with one object, else lines are sent as they are made."""

    return_timestamps: bool = True
    """Whether to tell when words are spoken."""

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, values: Any) -> Any:
        """The field is none to other calls."""
        if not isinstance(values, dict):
            return values
        asked = {name: values[name] for name in ("return_timestamps",) if values.get(name) is not None}
        return {**translate({**values, **dict.fromkeys(asked)}), **asked}


class Captioned(Form):
    """Objects in lines, each with a piece of the file and the words whose times are known since the one before. The
    last line of a stream has the rest of them, and no audio."""

    _kind = ""  # of the file

    def media_type(self, encoder: Encoder) -> str:
        return "application/json"

    def piece(self, encoder: Encoder, index: int, data: bytes) -> bytes:
        self._kind = encoder.media_type
        return self._line(data)

    def end(self, info: Mapping[str, Any], warnings: Sequence[str]) -> bytes:
        return b"" if self.whole else self._line(b"")

    def _line(self, data: bytes) -> bytes:
        words = [
            {"word": word.text, "start_time": round(word.start, 4), "end_time": round(word.end, 4)}
            for word in self.known()
        ]
        audio = base64.b64encode(data).decode()
        return json.dumps({"audio": audio, "audio_format": self._kind, "timestamps": words}).encode() + b"\n"


@router.post("/dev/captioned_speech", include_in_schema=False)
async def create_captioned_speech(payload: CaptionedRequest, request: Request) -> SpeechResponse:
    """Speak a text, and tell when each word is spoken."""
    return SpeechResponse(request, payload, Captioned(payload.stream is False, payload.return_timestamps))
