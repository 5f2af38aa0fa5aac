"""Deepgram: `/v1/speak` and what its clients ask beside it."""

from __future__ import annotations

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from ...http.errors import HTTPFailure
from ..vendor import Vendor, lasting_status
from . import account, speech


def shape(failed: HTTPFailure, scope: Scope) -> Response:
    """Their error."""
    detail = failed.body()["error"]
    body = {
        "err_code": detail["code"].upper(),
        "err_msg": detail["message"],
        "request_id": scope["state"]["request_id"],
    }
    return JSONResponse(body, lasting_status(failed), dict(failed.headers or {}))


def _speaks(headers: Headers) -> bool:
    return headers.get("authorization", "").lower().startswith("token ") or "x-deepgram-session-id" in headers


DEEPGRAM = Vendor(
    paths=("/v1/speak", "/v2/speak", "/v1/auth"),
    routers=(speech.router, speech.sockets, account.router, account.models(_speaks)),
    shape=shape,
    speaks=_speaks,
    headers=("dg-request-id", "dg-model-name", "dg-model-uuid", "dg-char-count"),
)
