"""Cartesia."""

from __future__ import annotations

from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from ...http.errors import HTTPFailure
from ..vendor import Vendor

_JSON_SINCE = "2026-03-01"


def shape(failed: HTTPFailure, scope: Scope) -> Response:
    """Their error: JSON or, for clients of versions before, text."""
    detail, headers = failed.body()["error"], {**(failed.headers or {})}
    if failed.final:
        headers["x-should-retry"] = "false"
    title = detail["code"].replace("_", " ").capitalize()
    if Headers(scope=scope).get("cartesia-version", _JSON_SINCE) < _JSON_SINCE:
        return PlainTextResponse(f"{title}: {detail['message']}", failed.status_code, headers)
    body = {
        "error_code": detail["code"],
        "title": title,
        "message": detail["message"],
        "request_id": scope["state"]["request_id"],
        "doc_url": None,
    }
    return JSONResponse(body, failed.status_code, headers)


def _speaks(headers: Headers) -> bool:
    return "cartesia-version" in headers


CARTESIA = Vendor(
    paths=("/tts", "/voices", "/access-token", "/infill", "/pronunciation-dicts"),
    routers=(),
    shape=shape,
    speaks=_speaks,
)
