"""POST /v1/audio/transcriptions: the words spoken in a clip, as OpenAI's API writes them down."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Form, Request, Response, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict
from voice_clone_client import VoiceCloneError
from voice_clone_client.errors import renamed

from ..http.auth import guarded
from ..http.connection import while_connected
from ..http.errors import documented
from ..services import services_of

router = APIRouter(route_class=guarded("speak"), tags=["voices"])


class TranscriptionForm(BaseModel):
    """The form of a transcription."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    file: UploadFile
    """A clip of 1 to 30 s: WAV, FLAC, OGG, MP3, m4a, mp4, mov, webm, amr."""
    model: str | None = None
    """Any: the server's model `transcriber` does it."""
    language: str | None = None
    """Such as `en`; by default that model finds it out."""
    response_format: Literal["json", "text"] = "json"


class Transcription(BaseModel):
    """The answer in JSON."""

    text: str


@router.post(
    "/v1/audio/transcriptions",
    response_model=Transcription,
    responses=documented(400, 401, 403, 413, 429, 500, 501, 503, 504),
)
async def transcribe(
    request: Request, form: Annotated[TranscriptionForm, Form(media_type="multipart/form-data")]
) -> Response:
    """Write down the words spoken in a clip. Nothing of it is kept."""
    clip = await form.file.read()

    async def transcribed() -> str:
        readable = await services_of(request).clips.readable(clip)
        text: str = await request.state.client.transcribe(readable, language=form.language)
        return text

    try:
        text = await while_connected(request.receive, transcribed())
    except VoiceCloneError as error:
        raise renamed(error, {"audio": "file"}) from None
    return PlainTextResponse(text) if form.response_format == "text" else JSONResponse({"text": text})
