"""Their speech: whole or as it is made, as a file or with the times of its characters.

A file is sent as it is made by both calls, with and without `stream` in the path, but for WAV, whose header must have
its length.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from pydantic import Field

from ...speech.response import SpeechResponse
from ..orders import TaggedRequest, speak
from ..vendor import adapter
from .speech_schemas import DEFAULT_FORMAT, FIELDS, Speaking, Spoken, Timed

router = adapter()
PATH = "/v1/text-to-speech/{voice_id}"
OutputFormat = Annotated[str, Query()]


class TextToSpeech(Speaking):
    """The body."""

    text: Annotated[str, Field(min_length=1)]


@router.post(PATH)
async def convert(
    voice_id: str, body: TextToSpeech, request: Request, output_format: OutputFormat = DEFAULT_FORMAT
) -> SpeechResponse:
    """`text_to_speech.convert`."""
    return _speak(request, voice_id, body, output_format, whole=output_format.startswith("wav"))


@router.post(f"{PATH}/stream")
async def stream(
    voice_id: str, body: TextToSpeech, request: Request, output_format: OutputFormat = DEFAULT_FORMAT
) -> SpeechResponse:
    """`text_to_speech.stream`."""
    return _speak(request, voice_id, body, output_format, whole=False)


@router.post(f"{PATH}/with-timestamps")
async def convert_with_timestamps(
    voice_id: str, body: TextToSpeech, request: Request, output_format: OutputFormat = DEFAULT_FORMAT
) -> SpeechResponse:
    """`text_to_speech.convert_with_timestamps`."""
    return _speak(request, voice_id, body, output_format, whole=True, timed=True)


@router.post(f"{PATH}/stream/with-timestamps")
async def stream_with_timestamps(
    voice_id: str, body: TextToSpeech, request: Request, output_format: OutputFormat = DEFAULT_FORMAT
) -> SpeechResponse:
    """`text_to_speech.stream_with_timestamps`."""
    return _speak(request, voice_id, body, output_format, whole=False, timed=True)


def _speak(
    request: Request, voice_id: str, body: TextToSpeech, output_format: str, whole: bool, timed: bool = False
) -> SpeechResponse:
    values = {"input": body.text, "voice": voice_id, **body.values(output_format)}
    form = Timed(body.text, whole) if timed else Spoken(len(body.text), whole)
    return speak(request, values, FIELDS, form, body.ignored(), TaggedRequest)
