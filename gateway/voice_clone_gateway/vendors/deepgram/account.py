"""What their clients ask beside speech: models, which are the voices, and tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.datastructures import Headers
from voice_clone_client import VoiceNotFound, __version__
from voice_clone_client.errors import quoted
from voice_clone_text.languages import LANGUAGES

from ...http.tokens import MOST_SECONDS, grant
from ..listing import Listed, listed
from ..orders import Lenient
from ..vendor import adapter, shared
from .formats import uuid_of

router = adapter()


class Grant(Lenient):
    """The body."""

    ttl_seconds: Annotated[float, Field(ge=1, le=MOST_SECONDS)] | None = None
    """30 by default."""


@router.post("/v1/auth/grant")
async def create_token(request: Request, body: Grant | None = None) -> dict[str, Any]:
    """`auth.v1.tokens.grant`."""
    seconds = 30.0 if body is None or body.ttl_seconds is None else body.ttl_seconds
    return {"access_token": grant(request, seconds), "expires_in": seconds}


def models(speaks: Callable[[Headers], bool]) -> APIRouter:
    """Routes of paths that other APIs have, too."""
    router = shared(speaks)

    @router.get("/v1/models")
    async def list_models(request: Request) -> dict[str, Any]:
        """`manage.v1.models.list`."""
        return {"stt": [], "tts": [_model(each) for each in await listed(request)]}

    @router.get("/v1/models/{model_id}")
    async def get_model(model_id: str, request: Request) -> dict[str, Any]:
        """`manage.v1.models.get`, by uuid or name."""
        found = next((each for each in await listed(request) if model_id in (uuid_of(each.name), each.name)), None)
        if found is None:
            raise VoiceNotFound(f"there is no voice {quoted(model_id)}")
        return _model(found)

    return router


def _model(each: Listed) -> dict[str, Any]:
    return {
        "name": each.name,
        "canonical_name": each.name,
        "architecture": each.model or "voice-clone",
        "languages": [*LANGUAGES],
        "version": __version__,
        "uuid": uuid_of(each.name),
        "metadata": {},
    }
