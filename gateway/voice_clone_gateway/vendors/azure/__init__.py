"""Azure: speech of SSML over HTTP, and the list of voices."""

from __future__ import annotations

import re
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response
from starlette.types import Scope
from voice_clone_client.errors import quoted

from ...http.errors import HTTPFailure
from ...speech_forms import Form
from ...speech_response import SpeechResponse
from ..listing import listed
from ..orders import speak
from ..session import refused
from ..vendor import Vendor, adapter
from .ssml import Ssml

FORMAT_HEADER = "X-Microsoft-OutputFormat"
FIELDS = {"input": "text", "voice": "voice name", "speed": "rate"}
"""Their names of our fields."""
_FORMAT = re.compile(
    r"(?P<container>audio|ogg|raw|riff)-(?P<rate>\d{1,5})(?P<kilo>k?)hz-(?:\d{1,2}bit-)?(?:(?P<bits>\d{1,3})kb(?:itrate|ps)-)?"
    r"mono-(?P<codec>alaw|mp3|mulaw|opus|pcm)"
)
_FORMATS = {
    ("audio", "mp3"): "mp3",
    ("audio", "opus"): "opus",
    ("ogg", "opus"): "opus",
    ("raw", "pcm"): "pcm",
    ("raw", "mulaw"): "mulaw",
    ("raw", "alaw"): "alaw",
    ("riff", "pcm"): "wav",
    ("riff", "mulaw"): "wav_mulaw",
    ("riff", "alaw"): "wav_alaw",
}
_LEAST_BIT_RATE, _MOST_BIT_RATE = 32000, 192000  # of our encoders, which take the nearest one

router = adapter()


@router.post("/cognitiveservices/v1")
async def synthesize(request: Request) -> SpeechResponse:
    """A speech: as it is made but for WAV, whose header must have its length."""
    form = format_of(request.headers.get(FORMAT_HEADER, ""))
    ssml = Ssml(await request.body())
    values = {"input": ssml.text, "voice": ssml.voice, "language": ssml.language, "speed": ssml.speed, **form}
    return speak(request, values, FIELDS, Form(whole=form["response_format"].startswith("wav")), ssml.ignored)


@router.get("/cognitiveservices/voices/list")
async def list_voices(request: Request) -> list[dict[str, Any]]:
    """The voices that the key may use."""
    return [
        {
            "Name": each.name,
            "DisplayName": each.name,
            "LocalName": each.name,
            "ShortName": each.name,
            "Gender": "Neutral",
            "Locale": "en-US",  # any: a voice speaks all languages of its model
            "SampleRateHertz": "24000",
            "VoiceType": "Neural",
            "Status": "GA",
        }
        for each in await listed(request)
    ]


def format_of(text: str) -> dict[str, Any]:
    """Our fields for a format such as `audio-24khz-48kbitrate-mono-mp3`.

    Raises:
        HTTPFailure: there is no such format.
    """
    found = _FORMAT.fullmatch(text)
    kind = found and _FORMATS.get((found["container"], found["codec"]))
    if found is None or kind is None:
        known = "audio-24khz-48kbitrate-mono-mp3, riff-24khz-16bit-mono-pcm, raw-8khz-8bit-mono-mulaw"
        raise refused(FORMAT_HEADER, f"{quoted(text)} is none here; one is like {known}")
    bits = found["bits"] and min(max(int(found["bits"]) * 1000, _LEAST_BIT_RATE), _MOST_BIT_RATE)
    rate = int(found["rate"]) * (1000 if found["kilo"] else 1)
    return {"response_format": kind, "sample_rate": rate, "bit_rate": bits}


def shape(failed: HTTPFailure, scope: Scope) -> Response:
    """Their error."""
    detail = failed.body()["error"]
    body = {"code": detail["code"], "message": detail["message"]}
    return JSONResponse({"error": body}, failed.status_code, dict(failed.headers or {}))


AZURE = Vendor(paths=("/cognitiveservices",), routers=(router,), shape=shape, speaks=lambda headers: False)
