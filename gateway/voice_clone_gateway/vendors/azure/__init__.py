"""Azure: speech of SSML over HTTP, and the list of voices."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response
from starlette.types import Scope
from voice_clone_client.errors import quoted

from ...http.errors import HTTPFailure
from ...schemas import SpeechRequest
from ...speech.forms import Form
from ...speech.response import SpeechResponse
from ..listing import listed
from ..orders import speech_request
from ..session import refused
from ..vendor import Vendor, adapter

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

_MOST_BYTES = 1 << 20
_ENCODING = re.compile(rb"""\s*<\?xml[^>]{1,80}encoding=["']([\w.-]{1,40})["']""")

router = adapter()


class AzureRequest(SpeechRequest):
    """A request in Azure's dialect of SSML."""

    relative_rates: ClassVar[bool] = True


@router.post("/cognitiveservices/v1")
async def synthesize(request: Request) -> SpeechResponse:
    """A speech: as it is made but for WAV, whose header must have its length."""
    form = format_of(request.headers.get(FORMAT_HEADER, ""))
    document = await request.body()
    if len(document) > _MOST_BYTES:
        raise HTTPFailure(413, f"SSML may have {_MOST_BYTES} bytes; divide the text", "body_too_large")
    declared = _ENCODING.match(document)
    try:
        text = document.decode(declared[1].decode() if declared else json.detect_encoding(document))
    except (LookupError, ValueError):
        raise HTTPFailure(400, "the body is no text in its encoding; send <speak> in UTF-8", "invalid_ssml") from None
    payload = speech_request(request, {"input": text or " ", "input_type": "ssml", **form}, FIELDS, AzureRequest)
    return SpeechResponse(request, payload, Form(form["response_format"].startswith("wav")), (), FIELDS)


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
