"""ElevenLabs: speech, dialogue, voices and what applications ask beside them."""

from __future__ import annotations

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from ...http.errors import HTTPFailure
from ..vendor import Vendor, lasting_status
from . import account, dialogue, dictionaries, sockets, speech, voices
from .speech_schemas import CLIENT_HEADER

_STATUSES = {
    "too_many_characters": "quota_exceeded",
    "too_many_speeches": "too_many_concurrent_requests",
    "overloaded": "system_busy",
    "server_unavailable": "system_busy",
}
"""Their words for some codes of errors; the others are the same."""


def shape(failed: HTTPFailure, scope: Scope) -> Response:
    """Their error."""
    detail = failed.body()["error"]
    body = {"status": _STATUSES.get(detail["code"], detail["code"]), "message": detail["message"]}
    return JSONResponse({"detail": body}, lasting_status(failed), dict(failed.headers or {}))


def _speaks(headers: Headers) -> bool:
    return CLIENT_HEADER in headers


ELEVENLABS = Vendor(
    paths=(
        *("/v1/text-to-speech", "/v1/text-to-dialogue", "/v1/voices", "/v2/voices", "/v1/user", "/v1/history"),
        dictionaries.PATH,
        *account.REFUSED,
    ),
    routers=(
        *(speech.router, dialogue.router, voices.router, voices.manage, dictionaries.router, dictionaries.manage),
        *(account.router, account.models, sockets.router),
    ),
    shape=shape,
    speaks=_speaks,
    headers=("request-id", "character-cost"),
)
