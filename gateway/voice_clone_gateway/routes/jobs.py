"""/v1/audio/jobs: speech of long texts that nobody waits for; the life cycle is that of OpenAI's /v1/videos."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.responses import StreamingResponse

from ..http.auth import guarded
from ..http.errors import documented
from ..http.whole_files import RESPONSES, head_of, unchanged
from ..jobs.keeper import Jobs, jobs_of
from ..jobs.schemas import DeletedJob, JobAnswer, JobList, JobRequest
from ..jobs.tables import Job

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
    jobs = jobs_of(request)
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
    jobs = jobs_of(request)
    if after is not None:
        await jobs.get(request.state.key, after)
    found = await jobs.page(request.state.key, limit + 1, after, order == "desc")
    data = [_answer(jobs, replace(job, segments=None)) for job in found[:limit]]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return JobList(data=data, first_id=first, last_id=last, has_more=len(found) > limit)


@kept.get("/v1/audio/jobs/{job_id}", responses=documented(*ERRORS))
async def get_job(job_id: str, request: Request) -> JobAnswer:
    """A job."""
    jobs = jobs_of(request)
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
    jobs = jobs_of(request)
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
    jobs = jobs_of(request)
    return _answer(jobs, await jobs.cancel(request.state.key, job_id))


@kept.delete("/v1/audio/jobs/{job_id}", responses=documented(*ERRORS))
async def delete_job(job_id: str, request: Request) -> DeletedJob:
    """Delete a job and its file; one that has not ended is cancelled."""
    await jobs_of(request).delete(request.state.key, job_id)
    return DeletedJob(id=job_id)


def _answer(jobs: Jobs, job: Job) -> JobAnswer:
    return JobAnswer.of(job, jobs.making(job.id) if job.live else None)


router.include_router(kept)
