"""GET /v1/audio/speech/{id}: how a speech goes, or how it ended."""

from __future__ import annotations

from fastapi import APIRouter, Request

from ..http.auth import guarded
from ..http.errors import documented
from ..speech_statuses import SpeechStatus, SpeechStatuses

router = APIRouter(route_class=guarded("speak"), tags=["speech"])


@router.get("/v1/audio/speech/{speech_id}", responses=documented(401, 403, 404))
async def get_speech(speech_id: str, request: Request) -> SpeechStatus:
    """How a speech goes, or how it ended, by the X-Request-ID of its answer; of the caller's key alone."""
    statuses: SpeechStatuses = request.app.state.statuses
    return statuses.find(request.state.key, speech_id)
