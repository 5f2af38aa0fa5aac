"""Recordings in which speakers consent to voices: kept by the server beside the voices, and never spoken with.

The ids begin with the time, so a list in their order has the newest one at its end.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import Form, Query, Request, Response, UploadFile
from voice_clone_client import VoiceCloneError, VoiceNotFound
from voice_clone_client.errors import renamed
from voice_clone_client.types import Consent

from ...http.audit import recorded
from ...http.connection import while_connected
from ...http.errors import HTTPFailure
from ...services import services_of
from ..orders import Lenient, warn_of
from ..vendor import adapter

manage = adapter("manage")
PATH = "/v1/audio/voice_consents"
MOST = 100  # of a page
_ID = re.compile(r"cons_[0-9A-Za-z]{1,64}")


class NewConsent(Lenient):
    """The form."""

    name: str
    language: str
    recording: UploadFile


class Changes(Lenient):
    """The body."""

    name: str


@manage.post(PATH)
async def create(
    request: Request, response: Response, form: Annotated[NewConsent, Form(media_type="multipart/form-data")]
) -> dict[str, Any]:
    """`audio.voice_consents.create`."""
    id = f"cons_{time.time_ns() // 10**6:012x}{secrets.token_hex(10)}"
    with recorded(request, "consent", id), _in_their_words(id):
        clip = await form.recording.read()
        clip = await while_connected(request.receive, services_of(request).clips.readable(clip))
        made = await request.state.client.record_consent(id, clip, description=form.name, language=form.language)
    for text in warn_of(form.unused()):
        response.headers["x-speech-warning"] = text
    return _consent(made)


@manage.get(PATH)
async def list_consents(
    request: Request, limit: Annotated[int, Query(ge=1, le=MOST)] = 20, after: str | None = None
) -> dict[str, Any]:
    """`audio.voice_consents.list`."""
    found = await request.state.client.consents(limit=limit + 1, after=after)
    data = [_consent(each) for each in found[:limit]]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, "has_more": len(found) > limit, **ends}


@manage.get(f"{PATH}/{{id}}")
async def retrieve(id: str, request: Request) -> dict[str, Any]:
    """`audio.voice_consents.retrieve`."""
    with _in_their_words(id):
        return _consent(await request.state.client.consent(id))


@manage.post(f"{PATH}/{{id}}")
async def update(id: str, body: Changes, request: Request) -> dict[str, Any]:
    """`audio.voice_consents.update`."""
    with recorded(request, "consent", id), _in_their_words(id):
        return _consent(await request.state.client.record_consent(id, description=body.name))


@manage.delete(f"{PATH}/{{id}}")
async def delete(id: str, request: Request) -> dict[str, Any]:
    """`audio.voice_consents.delete`. Voices that name it stay."""
    with recorded(request, "delete", id), _in_their_words(id):
        await request.state.client.delete_consent(id)
    return {"id": id, "deleted": True, "object": "audio.voice_consent"}


@contextmanager
def _in_their_words(id: str) -> Iterator[None]:
    """The server's errors about the recording of this id as theirs."""
    try:
        if not _ID.fullmatch(id):
            raise VoiceNotFound(id)
        yield
    except VoiceNotFound:
        message = f"there is no consent {id[:64]!r}; GET {PATH} lists those that there are, POST {PATH} makes one"
        raise HTTPFailure(404, message, "consent_not_found", param="consent_id") from None
    except VoiceCloneError as error:
        raise renamed(error, {"audio": "recording", "description": "name"}) from None


def _consent(consent: Consent) -> dict[str, Any]:
    return {
        "id": consent.id,
        "object": "audio.voice_consent",
        "name": consent.description,
        "language": consent.language,
        "created_at": int(consent.created_at),
    }
