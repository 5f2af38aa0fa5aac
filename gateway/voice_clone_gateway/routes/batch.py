"""POST /v1/audio/speech/batch: several texts in one request; each fails independently."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Iterable
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict
from starlette.types import Receive, Scope, Send
from voice_clone_client.callers import on_behalf_of
from voice_clone_client.fields import SOURCES

from ..http.auth import guarded
from ..http.connection import while_connected
from ..http.errors import ErrorDetail, HTTPFailure, documented, failure
from ..schemas import BatchRequest, SpeechRequest
from ..services import services_of
from ..speech.audited import usage
from ..speech.whole import FinishedSpeech, speak_whole

MOST_ITEMS = 64  # items of all batches that are spoken at once; the talker would refuse more, and we would retry them
_CODED = 48 << 10  # bytes of audio that become base64 at once, a multiple of 3

router = APIRouter(route_class=guarded("speak"), tags=["speech"])


class BatchResult(BaseModel):
    """The result of one item: audio in base64, or an error."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    index: int
    status: Literal["success", "error"]
    audio_data: str | None = None
    media_type: str | None = None
    usage: dict[str, Any] | None = None
    info: dict[str, Any] | None = None
    """What the server says of the speech, as in X-Speech-Info: mode, cache status, seed, milliseconds by stage."""
    finish_reason: str | None = None
    """How the speech ended, also if it failed."""
    warnings: list[str] | None = None
    error: ErrorDetail | None = None


class BatchAnswer(BaseModel):
    id: str
    results: list[BatchResult]
    total: int
    succeeded: int
    failed: int


@router.post(
    "/v1/audio/speech/batch",
    response_model=BatchAnswer,
    responses=documented(400, 401, 403, 413, 429, 500, 503),
)
async def create_batch(payload: BatchRequest, request: Request) -> Response:
    """Speak several texts; answers when all are complete."""
    services, key, request_id, held = (
        services_of(request),
        request.state.key,
        request.state.request_id,
        request.state.held,
    )
    if len(payload.items) > services.settings.batch_items:
        raise HTTPFailure(
            400,
            f"items has {len(payload.items)} entries; at most {services.settings.batch_items} are allowed",
            "invalid_argument",
            param="items",
        )
    defaults = payload.model_dump(exclude={"items"}, exclude_unset=True)
    most = min(services.settings.batch_parallel, len(payload.items))

    async def one(index: int, item: dict[str, Any], places: asyncio.Semaphore) -> tuple[BatchResult, bytes | None]:
        try:
            async with places, services.items.place():
                spoken = await speak_whole(services, key, request_id, _merge(defaults, item), held)
            return _success(index, spoken), spoken.audio
        except Exception as error:
            detail = ErrorDetail(**failure(error, request_id).body()["error"])
            reason = getattr(error, "finish_reason", None)
            return BatchResult(index=index, status="error", finish_reason=reason, error=detail), None

    with key.gate.pass_through(most) as parallel, services.gate.pass_through():
        places = asyncio.Semaphore(parallel)
        with on_behalf_of(urgency="batch"):
            work = asyncio.gather(*(one(index, item, places) for index, item in enumerate(payload.items)))
        results = await while_connected(request.receive, work)
    succeeded = sum(result.status == "success" for result, _ in results)
    answer = BatchAnswer(
        id=f"speech-batch-{uuid.uuid4().hex}",
        results=[],
        total=len(results),
        succeeded=succeeded,
        failed=len(results) - succeeded,
    )
    return AudioList(answer, "results", results)


def _merge(defaults: dict[str, Any], item: dict[str, Any]) -> SpeechRequest:
    """Return the item with the batch's fields as defaults. An item with a voice does not take that of the batch."""
    own = SpeechRequest.model_validate(item).model_dump(exclude_unset=True)
    if any(own.get(name) is not None for name in (*SOURCES, "reference_text")):
        defaults = {name: value for name, value in defaults.items() if name not in (*SOURCES, "reference_text")}
    merged = SpeechRequest.model_validate({**defaults, **own})
    for name in ("stream", "stream_format", "timestamp_granularities"):
        if getattr(merged, name) is not None:
            raise HTTPFailure(400, f"{name}: a batch does not stream; leave it out", "invalid_argument", param=name)
    return merged


def _success(index: int, spoken: FinishedSpeech) -> BatchResult:
    return BatchResult(
        index=index,
        status="success",
        audio_data="",
        media_type=spoken.media_type,
        usage=usage(spoken.info),
        info=dict(spoken.info),
        finish_reason=spoken.info.get("finish_reason"),
        warnings=list(spoken.warnings) or None,
    )


class AudioList(Response):
    """An answer with a list of audio. Its text is made while it is sent, so nothing is held twice.

    Args:
        answer: the answer without the entries.
        name: the list's name in the answer.
        entries: the list's entries, each with the audio for its `audio_data`, if it has any.
    """

    def __init__(self, answer: BaseModel, name: str, entries: Iterable[tuple[BaseModel, bytes | None]]) -> None:
        super().__init__(media_type="application/json")
        del self.headers["content-length"]
        self._head, self._tail = answer.model_dump_json(exclude_none=True).split(f'"{name}":[]')
        self._head += f'"{name}":['
        self._entries = entries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_text(text: str | bytes, more: bool = True) -> None:
            body = text.encode() if isinstance(text, str) else text
            await send({"type": "http.response.body", "body": body, "more_body": more})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send_text(self._head)
        for index, (entry, audio) in enumerate(self._entries):
            before, audio_data, after = entry.model_dump_json(exclude_none=True).partition('"audio_data":"')
            await send_text(("," if index else "") + before + audio_data)
            for begin in range(0, len(audio or b""), _CODED):
                await send_text(base64.b64encode(memoryview(audio or b"")[begin : begin + _CODED]))
            await send_text(after)
        await send_text(f"]{self._tail}", more=False)
