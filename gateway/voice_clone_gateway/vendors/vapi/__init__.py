"""Vapi's custom voice: the request that Vapi sends for each text. Its address may have the query `?voice=NAME`."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Request
from pydantic import Field

from ...http.errors import own_shape
from ...speech.forms import Form
from ...speech.response import SpeechResponse
from ..orders import Lenient, speak
from ..vendor import Vendor, adapter

FIELDS = {"input": "message.text", "sample_rate": "message.sampleRate"}
"""Their names of our fields."""

router = adapter()


class Spoken(Lenient):
    """What to say; all else is about the call."""

    type: Literal["voice-request"]
    text: Annotated[str, Field(min_length=1)]
    sampleRate: int  # their name


class VoiceRequest(Lenient):
    """The body."""

    message: Spoken


@router.post("/vapi/voice-request")
async def voice_request(
    body: VoiceRequest, request: Request, voice: Annotated[str | None, Query()] = None
) -> SpeechResponse:
    """A speech as raw samples of 16 bits."""
    message = body.message
    values = {"input": message.text, "voice": voice, "sample_rate": message.sampleRate, "response_format": "pcm"}
    return speak(request, values, FIELDS, Form())


VAPI = Vendor(paths=("/vapi",), routers=(router,), shape=own_shape, speaks=lambda headers: False)
