"""POST /v1/audio/detect: whether a sound carries the mark of synthetic speech."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Form, Request, UploadFile
from pydantic import BaseModel, ConfigDict

from ..http.auth import guarded, preparing
from ..http.errors import documented

router = APIRouter(route_class=guarded("speak"), tags=["marks"])


class DetectForm(BaseModel):
    """The form of a detection."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    file: UploadFile
    """WAV, FLAC, OGG or MP3 of 0.1 s to 10 minutes; m4a, mp4, mov, webm or amr of up to 30 s."""


class Detected(BaseModel):
    """What was found in the sound."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    mark: str | None
    """The kind of the mark, such as `perth`; null: there is none."""
    confidence: float
    """0 to 1; of the piece of the sound that has the most."""
    speed: float
    """At how many times its speed the marked speech is played."""
    start: float
    """Where that piece begins, in seconds."""
    seconds: float
    """How long it is."""


@router.post("/v1/audio/detect", responses=documented(400, 401, 403, 413, 429, 500, 501, 503, 504))
async def detect(request: Request, form: Annotated[DetectForm, Form(media_type="multipart/form-data")]) -> Detected:
    """Look for the mark of synthetic speech."""
    with preparing(request):
        clip = await request.app.state.clips.readable(await form.file.read())
        return Detected(**asdict(await request.state.client.detect(clip)))
