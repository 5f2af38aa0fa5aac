"""POST /v1/audio/speech/batch: several texts in one request; each fails independently."""

from __future__ import annotations

import asyncio
import base64
import uuid
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel, ConfigDict
from voice_clone_client import Incomplete
from voice_clone_client.callers import on_behalf_of
from voice_clone_client.long_text.speaker import Speech

from ..accounts import audited, audited_result, usage
from ..audio import Encoder
from ..http.auth import guarded
from ..http.connection import while_connected
from ..http.errors import ErrorDetail, HTTPFailure, documented, failure
from ..http.keys import Key
from ..schemas import SOURCES, BatchRequest, SpeechRequest
from ..synthesis import open_speech

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
    """The server's, as in X-Speech-Info: mode, cache status, seed, milliseconds by stage."""
    finish_reason: str | None = None
    """How the speech ended; also of one that failed."""
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
    response_model_exclude_none=True,
    responses=documented(400, 401, 403, 413, 429, 500, 503),
)
async def create_batch(payload: BatchRequest, request: Request) -> BatchAnswer:
    """Speak several texts; answers when all are complete."""
    app, key, request_id = request.app, request.state.key, request.state.request_id
    if len(payload.items) > app.state.settings.batch_items:
        raise HTTPFailure(
            400,
            f"items has {len(payload.items)} entries; at most {app.state.settings.batch_items} are allowed",
            "invalid_argument",
            param="items",
        )
    defaults = payload.model_dump(exclude={"items"}, exclude_unset=True)
    most = min(app.state.settings.batch_parallel, len(payload.items))

    async def one(index: int, item: dict[str, Any], places: asyncio.Semaphore) -> BatchResult:
        try:
            async with places:
                return await speak_item(app, key, request_id, index, _merge(defaults, item))
        except Exception as error:
            detail = ErrorDetail(**failure(error, request_id).body()["error"])
            reason = getattr(error, "finish_reason", None)
            return BatchResult(index=index, status="error", finish_reason=reason, error=detail)

    with key.gate.pass_through(most) as parallel, app.state.gate.pass_through():
        places = asyncio.Semaphore(parallel)
        with on_behalf_of(urgency="batch"):
            work = asyncio.gather(*(one(index, item, places) for index, item in enumerate(payload.items)))
        results = await while_connected(request.receive, work)
    succeeded = sum(result.status == "success" for result in results)
    return BatchAnswer(
        id=f"speech-batch-{uuid.uuid4().hex}",
        results=results,
        total=len(results),
        succeeded=succeeded,
        failed=len(results) - succeeded,
    )


def _merge(defaults: dict[str, Any], item: dict[str, Any]) -> SpeechRequest:
    """The item with the fields of the batch as defaults. An item with a voice takes none of the batch."""
    own = SpeechRequest.model_validate(item).model_dump(exclude_unset=True)
    if any(own.get(name) is not None for name in (*SOURCES, "reference_text")):
        defaults = {name: value for name, value in defaults.items() if name not in (*SOURCES, "reference_text")}
    merged = SpeechRequest.model_validate({**defaults, **own})
    for name in ("stream", "stream_format"):
        if getattr(merged, name) is not None:
            raise HTTPFailure(400, f"{name}: a batch does not stream; leave it out", "invalid_argument", param=name)
    return merged


async def speak_item(
    app: FastAPI, key: Key, request_id: str, index: int, payload: SpeechRequest, *, in_one: bool = False
) -> BatchResult:
    """Speak one text to its end. `in_one`: see `open_speech`. Raises: as that, and what the speech raises."""
    asked, metrics = audited(key, payload), app.state.metrics
    spoken: Speech | None = None
    with (
        app.state.audit.act(key, request_id, "speech", **asked, characters=len(payload.input)) as entry,
        metrics.live.track_inprogress(),
    ):
        encoder: Encoder | None = None
        try:
            spoken, ordered = await open_speech(app, key, payload.input, payload, hold=True, in_one=in_one)
            async for chunk in spoken:
                encoder = encoder or Encoder(
                    payload.response_format,
                    chunk.sample_rate,
                    payload.sample_rate,
                    payload.speed,
                    streaming=False,
                    comment=app.state.signing.statement(ordered.family, spoken.info),
                )
                await encoder.encode_aside(chunk.samples)
            assert encoder is not None  # a speech without a chunk is a broken stream
            data, client = await encoder.finish_aside(), app.state.clients.of(key)
            media_type = encoder.format.base_type
            data = await app.state.signing.signed(data, media_type, ordered.family, spoken.info, client)
        except BaseException as error:
            metrics.count_failed(error, encoder is not None or isinstance(error, Incomplete))
            raise
        finally:
            if spoken is not None:
                spoken.close()
                seconds = 0.0 if encoder is None else encoder.seconds
                metrics.audio_seconds.inc(seconds)
                metrics.count_mark(key, spoken.info)
                entry |= audited_result(spoken.info, seconds)
    return BatchResult(
        index=index,
        status="success",
        audio_data=base64.b64encode(data).decode(),
        media_type=encoder.media_type,
        usage=usage(spoken.info),
        info=dict(spoken.info or {}),
        finish_reason=(spoken.info or {}).get("finish_reason"),
        warnings=list(ordered.warnings) or None,
    )
