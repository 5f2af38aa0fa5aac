"""The JSON of requests for jobs and of their answers. Words and life cycle are those of OpenAI's /v1/videos."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from voice_clone_client.fields import SOURCES

from ..http.errors import HTTPFailure
from ..schemas import SpeechRequest
from ..settings import Settings
from ..speech.synthesis import check_options
from .making import Making
from .tables import Job, Status

JobsState = Literal["ready", "waiting", "unreadable"]
OBJECT: Literal["audio.job"] = "audio.job"


class JobRequest(SpeechRequest):
    """The body of POST /v1/audio/jobs: that of /v1/audio/speech for a text up to a book, in a registered voice."""

    webhook_url: Annotated[str, Field(max_length=2048)] | None = None
    """Gets a POST by Standard Webhooks when the job has ended."""
    webhook_secret: Annotated[str, Field(max_length=128)] | None = None
    """With which that is signed: base64 of 24 to 64 bytes, with or without `whsec_` before it."""

    def check_job(self, settings: Settings) -> None:
        """Check what can be checked without the server.

        Raises:
            HTTPFailure: 400, what no job can do is asked for, or the text is too long.
            InvalidArgument: see `check_options`.
        """
        for name in ("stream", "stream_format", "timestamp_granularities"):
            if getattr(self, name) is not None:
                raise _refused(name, "a job does not stream; leave it out")
        for name in (*SOURCES[1:], "reference_text"):
            if getattr(self, name) is not None:
                raise _refused(name, "a job speaks in registered voices; register it with POST /v1/audio/voices")
        if self.webhook_url is None and self.webhook_secret is not None:
            raise _refused("webhook_secret", "it is of no use without webhook_url; give that, too, or leave it out")
        if self.webhook_url is not None and not _is_secret(self.webhook_secret or ""):
            raise _refused("webhook_secret", "it must be base64 of 24 to 64 bytes, with or without whsec_ before it")
        check_options(settings, self)
        if len(self.input) > settings.job_characters:
            message = f"input has {len(self.input)} characters; a job has at most {settings.job_characters}"
            raise HTTPFailure(400, message, "invalid_argument", param="input")


def kept_error(failed: HTTPFailure) -> dict[str, Any]:
    """An error as a job keeps it: that of its answer, and the `status` of that."""
    return {**failed.body()["error"], "status": failed.status_code}


def _is_secret(text: str) -> bool:
    try:
        return 24 <= len(b64decode(text.removeprefix("whsec_"), validate=True)) <= 64
    except ValueError:  # no base64
        return False


def _refused(name: str, why: str) -> HTTPFailure:
    return HTTPFailure(400, f"{name}: {why}", "invalid_argument", param=name)


class Described(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class Sentences(Described):
    """How far the sentences of a job are."""

    total: int
    done: int
    """Made, or found among those that earlier jobs had made."""
    made: int
    """That the server spoke for this job."""


class JobError(Described):
    """Why a job failed."""

    message: str
    code: str


class JobAnswer(Described):
    """A job."""

    id: str
    object: Literal["audio.job"] = OBJECT
    status: Status
    progress: int
    """Percent."""
    model: str
    """The family that speaks it."""
    voice: str | None
    """As it was asked for; null: the gateway's default, or those of the segments."""
    response_format: str
    created_at: int
    """Seconds since 1970, as the others."""
    started_at: int | None
    completed_at: int | None
    """When it ended, in whatever way."""
    expires_at: int | None
    """When it is deleted."""
    characters: int
    sentences: Sentences
    seconds: float
    """Of sound so far; of a completed job, of its file."""
    seconds_left: float | None
    """How long it takes from now on; null: that is not known."""
    error: JobError | None
    size: int | None
    """Bytes of the file of a completed one."""
    media_type: str | None
    warnings: list[str]
    segments: list[dict[str, Any]] | None
    """Of a completed one, and not in lists: where each part begins and ends, in seconds, and where it is written."""

    @classmethod
    def of(cls, job: Job, making: Making | None = None) -> JobAnswer:
        """The answer for a job.

        Args:
            making: its sentences, if this gateway makes them now.
        """
        done = job.done if making is None else making.done
        seconds = (job.seconds or 0.0) if making is None else making.seconds
        return cls(
            id=job.id,
            status=job.status,
            progress=100 if job.status == "completed" else min(99, 100 * done // max(1, job.sentences)),
            model=job.family,
            voice=job.voice,
            response_format=job.format,
            created_at=int(job.created_at),
            started_at=whole(job.started_at),
            completed_at=whole(job.completed_at),
            expires_at=whole(job.expires_at),
            characters=job.characters,
            sentences=Sentences(total=job.sentences, done=done, made=job.made),
            seconds=round(seconds, 3),
            seconds_left=_left(job) if making is None else making.seconds_left,
            error=None if job.error is None else JobError(**json.loads(job.error)),
            size=job.size,
            media_type=job.media_type,
            warnings=json.loads(job.warnings),
            segments=None if job.segments is None else json.loads(job.segments),
        )


class JobList(Described):
    """Jobs in the order in which they were made."""

    object: Literal["list"] = "list"
    data: list[JobAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedJob(Described):
    """A job that was deleted."""

    id: str
    object: Literal["audio.job.deleted"] = "audio.job.deleted"
    deleted: Literal[True] = True


def _left(job: Job) -> float | None:
    """An estimate of the seconds that are left of a job that another gateway of the fleet makes, from what it wrote."""
    if not job.live or job.started_at is None or not job.made:
        return None
    there = max(job.done, job.made)  # the one is written once a second, the other one has no sentence of earlier jobs
    return round(max(0.0, time.time() - job.started_at) * max(0, job.sentences - there) / job.made, 1)


def whole(seconds: float | None) -> int | None:
    """The time in an answer, in whole seconds."""
    return None if seconds is None else int(seconds)


def check_text(name: str, text: str | None) -> None:
    """Check what is written into a column: not every database keeps all characters."""
    if text is not None and "\0" in text:
        raise HTTPFailure(400, f"{name} must be text without the character NUL", "invalid_argument", param=name)
