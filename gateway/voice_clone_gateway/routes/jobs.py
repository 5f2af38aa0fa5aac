"""/v1/audio/jobs: speech of long texts that nobody waits for; the life cycle is that of OpenAI's /v1/videos."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.responses import StreamingResponse
from voice_clone_client import Unsupported

from ..http.auth import guarded
from ..http.errors import documented
from ..http.whole_files import RESPONSES, head_of, unchanged
from ..jobs.keeper import Jobs
from ..jobs.schemas import DeletedJob, JobAnswer, JobError, JobList, JobRequest, Sentences
from ..jobs.tables import Job
from ..services import services_of

MOST = 100  # jobs of a page
RETRY_AFTER = 5  # seconds after which it is worth while to look at a new job
router = APIRouter(route_class=guarded("speak", tokens=False), tags=["jobs"])
kept = APIRouter(route_class=guarded("speak", needs_server=False, tokens=False), tags=["jobs"])

ERRORS = (400, 401, 403, 404, 500, 501, 503)
_KEY = Header(alias="Idempotency-Key", max_length=255, description="The same one makes no second job, for 24 hours")


@router.post(
    "/v1/audio/jobs",
    status_code=202,
    response_model=JobAnswer,
    responses=documented(*ERRORS, 409, 413, 422, 429, 504),
)
async def create_job(
    payload: JobRequest, request: Request, response: Response, key: Annotated[str | None, _KEY] = None
) -> JobAnswer:
    """Speak a text up to a book. The answer is the job, whose `status` says how far it is."""
    jobs = _jobs(request)
    job = await jobs.create(request.state.key, request.state.request_id, payload, key or None)
    response.headers["Location"] = f"/v1/audio/jobs/{job.id}"
    response.headers["Retry-After"] = str(RETRY_AFTER)
    return _answer(jobs, job)


@kept.get("/v1/audio/jobs", responses=documented(*ERRORS))
async def list_jobs(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MOST, description="At most so many jobs")] = 20,
    after: Annotated[str | None, Query(description="The jobs behind this one")] = None,
    order: Annotated[Literal["asc", "desc"], Query(description="`desc`: the newest first")] = "desc",
) -> JobList:
    """The jobs of this key, without their segments, which may be many."""
    jobs = _jobs(request)
    if after is not None:
        await jobs.get(request.state.key, after)
    found = await jobs.page(request.state.key, limit + 1, after, order == "desc")
    data = [_answer(jobs, replace(job, segments=None)) for job in found[:limit]]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return JobList(data=data, first_id=first, last_id=last, has_more=len(found) > limit)


@kept.get("/v1/audio/jobs/{job_id}", responses=documented(*ERRORS))
async def get_job(job_id: str, request: Request) -> JobAnswer:
    """A job."""
    jobs = _jobs(request)
    return _answer(jobs, await jobs.get(request.state.key, job_id))


@kept.get(
    "/v1/audio/jobs/{job_id}/content",
    response_class=Response,
    responses={
        200: {"content": {"audio/*": {"schema": {"type": "string", "format": "binary"}}}},
        **RESPONSES,
        **documented(*ERRORS, 409, 410),
    },
)
async def get_content(job_id: str, request: Request) -> Response:
    """The file of a completed job, or a part of it."""
    jobs = _jobs(request)
    job = await jobs.get(request.state.key, job_id)
    file, tag = await jobs.file(job), f'"{(job.digest or "")[:32]}"'
    with ExitStack() as end:
        end.callback(file.close)
        if (known := unchanged(request, tag)) is not None:
            return known
        head, wanted = head_of(request, file.size, job.media_type, tag)
        if request.state.head:
            return head
        end.pop_all()  # from now on `pieces` closes it
        request.state.in_parts = True
        answer = StreamingResponse(jobs.pieces(file, wanted), head.status_code)
        answer.raw_headers = head.raw_headers
        return answer


@kept.post("/v1/audio/jobs/{job_id}/cancel", responses=documented(*ERRORS))
async def cancel_job(job_id: str, request: Request) -> JobAnswer:
    """End a job; one that has ended stays as it is."""
    jobs = _jobs(request)
    return _answer(jobs, await jobs.cancel(request.state.key, job_id))


@kept.delete("/v1/audio/jobs/{job_id}", responses=documented(*ERRORS))
async def delete_job(job_id: str, request: Request) -> DeletedJob:
    """Delete a job and its file; one that has not ended is cancelled."""
    await _jobs(request).delete(request.state.key, job_id)
    return DeletedJob(id=job_id)


def _jobs(request: Request) -> Jobs:
    jobs = services_of(request).jobs
    if jobs is None:
        raise Unsupported("this gateway takes no jobs; its operator gives it a place for them with --jobs-dir")
    return jobs


def _answer(jobs: Jobs, job: Job) -> JobAnswer:
    making = jobs.making(job.id) if job.live else None
    done = job.done if making is None else making.done
    seconds = (job.seconds or 0.0) if making is None else making.seconds
    return JobAnswer(
        id=job.id,
        status=job.status,
        progress=100 if job.status == "completed" else min(99, 100 * done // max(1, job.sentences)),
        model=job.family,
        voice=job.voice,
        response_format=job.format,
        created_at=int(job.created_at),
        started_at=_whole(job.started_at),
        completed_at=_whole(job.completed_at),
        expires_at=_whole(job.expires_at),
        characters=job.characters,
        sentences=Sentences(total=job.sentences, done=done, made=job.made),
        seconds=round(seconds, 3),
        seconds_left=None if making is None else making.seconds_left,
        error=None if job.error is None else JobError(**json.loads(job.error)),
        size=job.size,
        media_type=job.media_type,
        warnings=json.loads(job.warnings),
        segments=None if job.segments is None else json.loads(job.segments),
    )


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)


router.include_router(kept)
