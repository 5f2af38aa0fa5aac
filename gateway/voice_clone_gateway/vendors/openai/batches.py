"""OpenAI's batches of speeches, and the files with their lines and results; see `jobs.batches`.

The id of a file of results is that of its batch with a word behind it; the file with the speech of a line has the id of
the line's job.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import Form, Query, Request, Response, UploadFile
from fastapi.responses import RedirectResponse, StreamingResponse
from pydantic import Field

from ...http.encoding import decoded
from ...http.errors import HTTPFailure
from ...jobs.batch_tables import Batch, Progress, SentFile
from ...jobs.batches import OUTPUT, URL, Batches
from ...jobs.keeper import jobs_of
from ...jobs.schemas import whole
from ...services import services_of
from ..orders import Lenient, warn_of
from ..vendor import adapter

router = adapter(needs_server=False, tokens=False)
speaking = adapter(tokens=False)
FILES, BATCHES = "/v1/files", "/v1/batches"
PATHS = (FILES, BATCHES)
MOST = 100  # batches of a page
MOST_FILES = 10_000  # of a page


class NewFile(Lenient):
    """The form."""

    file: UploadFile
    purpose: Literal["batch"]


class NewBatch(Lenient):
    """The body."""

    input_file_id: str
    endpoint: Literal["/v1/audio/speech"]
    completion_window: Literal["24h"]
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
        ]
        | None
    ) = None


@router.post(FILES)
async def send_file(
    request: Request, response: Response, form: Annotated[NewFile, Form(media_type="multipart/form-data")]
) -> dict[str, Any]:
    """`files.create(purpose="batch")`."""
    text = decoded(await form.file.read(), "file: it", "file")
    file = await _batches(request).send(request.state.key, form.file.filename or "", text)
    _warn(response, form)
    return _file(file)


@router.get(FILES)
async def list_files(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MOST_FILES)] = MOST_FILES,
    after: str | None = None,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> dict[str, Any]:
    """`files.list`: those that were sent, without results."""
    files = jobs_of(request).files
    if purpose not in (None, "batch"):
        return _list([], 0)
    found = await files.aside(files.batches.files, request.state.key.turns, limit + 1, after, order == "desc")
    return _list([_file(each) for each in found], limit)


@router.get(f"{FILES}/{{id}}")
async def retrieve_file(id: str, request: Request) -> dict[str, Any]:
    """`files.retrieve`, also of results."""
    batches = _batches(request)
    if (found := await _results(batches, request, id)) is None:
        return _file(await batches.file(request.state.key, id))
    batch, which = found
    size = sum([len(piece) async for piece in batches.results(batch, which)])
    return _file(SentFile(id, batch.owner, f"{id}.jsonl", size, batch.created_at), "batch_output")


@router.get(f"{FILES}/{{id}}/content")
async def content_of_file(id: str, request: Request) -> Response:
    """`files.content`: what was sent, results, or the speech of a line."""
    if id.startswith("job_"):
        return RedirectResponse(f"../../audio/jobs/{id}/content", 307)
    batches = _batches(request)
    if (found := await _results(batches, request, id)) is not None:
        request.state.in_parts = True
        return StreamingResponse(batches.results(*found), media_type="application/jsonl")
    file, files = await batches.file(request.state.key, id), jobs_of(request).files
    request.state.held.add(2 * file.size)
    return Response(await files.aside(files.batches.text_of, file.id), media_type="application/jsonl")


@router.delete(f"{FILES}/{{id}}")
async def delete_file(id: str, request: Request) -> dict[str, Any]:
    """`files.delete`: of one that was sent, or of the speech of a line. Results go with their last line."""
    jobs = jobs_of(request)
    if id.startswith("job_"):
        await jobs.delete(request.state.key, id)
    else:
        file = await _batches(request).file(request.state.key, id)
        await jobs.files.aside(jobs.files.batches.delete_file, file.id)
    return {"id": id, "object": "file", "deleted": True}


@speaking.post(BATCHES)
async def create(body: NewBatch, request: Request, response: Response) -> dict[str, Any]:
    """`batches.create`."""
    batches, key = _batches(request), request.state.key
    file = await batches.file(key, body.input_file_id)
    request.state.held.add(4 * file.size)  # its text, and its jobs
    batch = await batches.create(key, request.state.request_id, file, body.metadata)
    _warn(response, body)
    return _batch(*await batches.get(key, batch.id))


@router.get(BATCHES)
async def list_batches(
    request: Request, limit: Annotated[int, Query(ge=1, le=MOST)] = 20, after: str | None = None
) -> dict[str, Any]:
    """`batches.list`."""
    found = await _batches(request).page(request.state.key, limit + 1, after)
    return _list([_batch(*each) for each in found], limit)


@router.get(f"{BATCHES}/{{id}}")
async def retrieve(id: str, request: Request) -> dict[str, Any]:
    """`batches.retrieve`."""
    return _batch(*await _batches(request).get(request.state.key, id))


@router.post(f"{BATCHES}/{{id}}/cancel")
async def cancel(id: str, request: Request) -> dict[str, Any]:
    """`batches.cancel`. Lines that have ended stay as they are."""
    batches, key = _batches(request), request.state.key
    await batches.cancel(key, id)
    return _batch(*await batches.get(key, id))


def _batches(request: Request) -> Batches:
    return Batches(services_of(request), jobs_of(request))


async def _results(batches: Batches, request: Request, id: str) -> tuple[Batch, str] | None:
    """The batch whose results a file has, and which ones; None: the id is that of another file."""
    of, _, which = id.rpartition("-")
    if which not in OUTPUT:
        return None
    batch, progress = await batches.get(request.state.key, of)
    if _results_id(batch, progress, which) is None:
        message = "the batch has no such results; retrieve it, and see `status`, `output_file_id` and `error_file_id`"
        raise HTTPFailure(404, message, "file_not_found", param="id")
    return batch, which


def _results_id(batch: Batch, progress: Progress, which: str) -> str | None:
    """The id of a file with results; None: there are none, or not all."""
    there = not progress.live and any(progress.counts.get(status) for status in OUTPUT[which])
    return f"{batch.id}-{which}" if there else None


def _file(file: SentFile, purpose: str = "batch") -> dict[str, Any]:
    about = {"filename": file.name, "bytes": file.size, "created_at": int(file.created_at)}
    return {"id": file.id, "object": "file", "purpose": purpose, "status": "processed", **about}


def _batch(batch: Batch, progress: Progress) -> dict[str, Any]:
    counts, ended = progress.counts, whole(progress.ended_at)
    cancelled = batch.cancelled_at is not None
    if progress.live:
        status = "cancelling" if cancelled else "in_progress"
    else:
        status = "cancelled" if cancelled else "completed"
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": URL,
        "input_file_id": batch.file,
        "completion_window": "24h",
        "status": status,
        "errors": None,
        "output_file_id": _results_id(batch, progress, "output"),
        "error_file_id": _results_id(batch, progress, "errors"),
        "created_at": int(batch.created_at),
        "in_progress_at": whole(progress.started_at),
        "completed_at": ended if status == "completed" else None,
        "cancelling_at": whole(batch.cancelled_at),
        "cancelled_at": ended if status == "cancelled" else None,
        "request_counts": {
            "total": sum(counts.values()),
            "completed": counts.get("completed", 0),
            "failed": counts.get("failed", 0),
        },
        "metadata": None if batch.metadata is None else json.loads(batch.metadata),
    }


def _list(data: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    page = data[:limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(data) > limit}


def _warn(response: Response, given: Lenient) -> None:
    for text in warn_of(given.unused()):
        response.headers["x-speech-warning"] = text
