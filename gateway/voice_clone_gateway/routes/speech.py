"""POST /v1/audio/speech: a text as audio: streamed raw, streamed as events, or as a whole file.

GET /v1/audio/speech/{id}: the state of a speech.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ..audio import FORMATS
from ..http.auth import guarded
from ..http.errors import documented
from ..schemas import SpeechRequest
from ..services import services_of
from ..speech.forms import Events, Form
from ..speech.response import SpeechResponse
from ..speech.statuses import SpeechStatus

WHOLE_CHARACTERS = 4096  # the most that OpenAI takes
router = APIRouter(route_class=guarded("speak"), tags=["speech"])

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_EVENT = {
    "type": "object",
    "properties": {
        "event": {"enum": ["speech.audio.delta", "speech.audio.done", "speech.audio.error"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}
_AUDIO = {entry.base_type.partition(";")[0]: _BINARY for entry in FORMATS.values()}


@router.post(
    "/v1/audio/speech",
    response_class=Response,
    responses={
        200: {
            "description": "The audio, or (stream_format sse) events: speech.audio.delta with audio in base64, then "
            "speech.audio.done with usage and finish_reason, or speech.audio.error. With timestamp_granularities each "
            "of the first two has words: objects with word, start, end, estimated and span.",
            "headers": {
                "X-Request-ID": {
                    "description": "The id of the speech, for GET /v1/audio/speech/{speech_id}",
                    "schema": {"type": "string"},
                },
                "X-Speech-Info": {
                    "description": "JSON: mode, cache status, seed, milliseconds by stage; finish_reason for a whole "
                    "file",
                    "schema": {"type": "string"},
                },
                "X-Speech-Provenance": {
                    "description": "That the sound is synthetic, by which family, and whether it is marked; absent "
                    "where speech is neither marked nor signed",
                    "schema": {"type": "string"},
                },
                "X-Speech-Warning": {
                    "description": "What was ignored or replaced; absent if nothing was",
                    "schema": {"type": "string"},
                },
            },
            "content": {**_AUDIO, "text/event-stream": {"schema": _EVENT}},
        },
        **documented(400, 401, 403, 404, 413, 429, 500, 501, 503, 504),
    },
)
async def create_speech(payload: SpeechRequest, request: Request) -> Response:
    """Speak a text."""
    whole = payload.stream is False or (payload.stream_format is None and _reads_whole(request, payload))
    form = Events(timed=bool(payload.timestamp_granularities)) if payload.events else Form(whole)
    return SpeechResponse(request, payload, form)


def _reads_whole(request: Request, payload: SpeechRequest) -> bool:
    """Whether the client gives its caller nothing before the answer is complete, as OpenAI's for Python does.

    It hears nothing later if the file is made as a whole, and a speech that fails is an error, not a body that breaks
    off, which makes this client ask for the same speech twice more. Long texts are streamed: their files fill memory.
    """
    headers = request.headers
    reads = headers.get("x-stainless-lang") == "python" and headers.get("x-stainless-raw-response") != "stream"
    return reads and len(payload.input) <= WHOLE_CHARACTERS


@router.get("/v1/audio/speech/{speech_id}", responses=documented(400, 401, 403, 404))
async def get_speech(speech_id: str, request: Request) -> SpeechStatus:
    """The state of a speech, by the X-Request-ID of its answer; of the caller's key alone."""
    statuses = services_of(request).statuses
    return statuses.find(request.state.key, speech_id)
