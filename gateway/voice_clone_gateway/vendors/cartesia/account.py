"""What their clients ask beside speech and voices: the status, tokens, empty lists, and what is not here."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Request
from pydantic import Field
from voice_clone_client import __version__

from ...http.tokens import MOST_SECONDS, grant
from ..orders import Lenient
from ..vendor import adapter, refuse, shared
from .generation import VERSION_HEADER

REFUSED = {
    "/infill": "fills a gap between two recordings, which no model here does",
    "/voice-changer": "changes the voice of a recording, which no model here does",
    "/voices/localize": "makes a voice of another language; a voice speaks each language of its model here as it is",
    "/voices/{id}/accents": "gives a voice another accent, which no model here does",
    "/voices": "takes a recording here: POST /voices/clone",
    "/pronunciation-dicts": "keeps pronunciations; write the words as they are spoken",
}
"""How the paths begin of what is not here, and why."""

router = adapter()
status = shared(lambda headers: VERSION_HEADER in headers)


@status.get("/")
async def get_status() -> dict[str, Any]:
    """`get_status`."""
    return {"ok": True, "version": __version__}


class Grant(Lenient):
    """The body."""

    expires_in: Annotated[int, Field(ge=1, le=MOST_SECONDS)] | None = None
    """Seconds; 60 by default."""


@router.post("/access-token")
async def create_token(request: Request, body: Grant | None = None) -> dict[str, Any]:
    """`access_token.create`."""
    return {"token": grant(request, (body and body.expires_in) or 60)}


@router.get("/accents")
async def accents() -> dict[str, Any]:
    """`voices.list_accents`."""
    return {"accents": []}


@router.get("/pronunciation-dicts")
async def dictionaries() -> dict[str, Any]:
    """`pronunciation_dicts.list`."""
    return {"data": [], "has_more": False}


for _path, _why in REFUSED.items():
    refuse(router, _path, _why)
