"""Cartesia: speech, voices and what applications ask beside them."""

from __future__ import annotations

from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Scope

from ...http.errors import HTTPFailure
from ..vendor import Vendor
from . import account, speech, voices
from .generation import VERSION_HEADER, error_of, has_text_errors


def shape(failed: HTTPFailure, scope: Scope) -> Response:
    """Their error: JSON or, for clients of older versions, text."""
    headers = {**(failed.headers or {})}
    if failed.final:
        headers["x-should-retry"] = "false"
    body = error_of(failed, scope["state"]["request_id"])
    if has_text_errors(HTTPConnection(scope)):
        return PlainTextResponse(f"{body['title']}: {body['message']}", failed.status_code, headers)
    return JSONResponse(body, failed.status_code, headers)


def _speaks(headers: Headers) -> bool:
    return VERSION_HEADER in headers


CARTESIA = Vendor(
    paths=("/tts", "/voices", "/accents", "/access-token", "/infill", "/voice-changer", "/pronunciation-dicts"),
    routers=(speech.router, speech.sockets, voices.router, voices.manage, account.status, account.router),
    shape=shape,
    speaks=_speaks,
)
