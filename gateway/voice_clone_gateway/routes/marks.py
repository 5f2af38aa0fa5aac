"""POST /v1/audio/detect: whether a sound carries the mark of synthetic speech, and its file a manifest or a tag.

Its answer is `voice_clone_provenance.examination.Examination`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request, UploadFile
from pydantic import BaseModel, ConfigDict
from voice_clone_client import Detection, InvalidArgument, Unsupported, VoiceCloneError
from voice_clone_client.errors import renamed
from voice_clone_provenance.examination import examined
from voice_clone_provenance.manifests import Manifest
from voice_clone_provenance.statements import Statement

from ..http.auth import guarded
from ..http.connection import while_connected
from ..http.errors import documented
from ..services import services_of

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
    """The kind of the mark, such as `perth`; null: there is none, or see mark_unread, where the next four are null,
    too."""
    confidence: float | None
    """0 to 1; of the piece of the sound that has the most."""
    speed: float | None
    """At how many times its speed the marked speech is played."""
    start: float | None
    """Where that piece begins, in seconds."""
    seconds: float | None
    """How long it is."""
    mark_unread: str | None
    """Why there was no look for a mark, for example as the server has no detector; null: there was one."""
    manifest: Manifest | None
    """The C2PA manifest of the file; null: it has none, or see manifest_unread. `valid`: the file is as it was signed,
    by whoever has the certificate, in which `signer` is the organisation. `faults` are C2PA's codes for what does not
    verify."""
    manifest_unread: str | None
    """Why there was no look for a manifest; null: there was one."""
    statement: Statement | None
    """What a tag of the file says unsigned, as X-Speech-Provenance does: anyone can write it. Null: there is none."""


@router.post("/v1/audio/detect", responses=documented(400, 401, 403, 413, 429, 500, 501, 503, 504))
async def detect(request: Request, form: Annotated[DetectForm, Form(media_type="multipart/form-data")]) -> Detected:
    """Look for the mark of synthetic speech in a sound, and in its file for a manifest and a tag that say so."""
    data = await form.file.read()
    return await while_connected(request.receive, _detect(request, data))


async def _detect(request: Request, data: bytes) -> Detected:
    services = services_of(request)
    found: Detection | VoiceCloneError
    manifest: Manifest | VoiceCloneError | None
    try:
        readable = await services.clips.readable(data)
        found = await request.state.client.detect(readable)
    except (InvalidArgument, Unsupported) as error:
        found = renamed(error, {"audio": "file"})
    try:
        manifest = await services.manifests.read(data)
    except Unsupported as error:
        manifest = error
    return Detected(**vars(examined(data, found, manifest)))
