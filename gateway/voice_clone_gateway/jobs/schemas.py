"""The JSON of jobs: what a caller sends, and what it is told. Words and life cycle are those of OpenAI's /v1/videos."""

from __future__ import annotations

from base64 import b64decode
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from voice_clone_client.fields import SOURCES

from ..http.errors import HTTPFailure
from ..schemas import SpeechRequest
from .tables import Status

JobsState = Literal["ready", "waiting", "unreadable"]
OBJECT: Literal["audio.job"] = "audio.job"


class JobRequest(SpeechRequest):
    """The body of POST /v1/audio/jobs: that of /v1/audio/speech for a text up to a book, in a registered voice."""

    webhook_url: Annotated[str, Field(max_length=2048)] | None = None
    """Gets a POST by Standard Webhooks when the job has ended."""
    webhook_secret: Annotated[str, Field(max_length=128)] | None = None
    """With which that is signed: base64 of 24 to 64 bytes, with or without `whsec_` before it."""

    def check_job(self) -> None:
        """Check what a job cannot do.

        Raises:
            HTTPFailure: 400, it is asked for.
        """
        for name in ("stream", "stream_format", "timestamp_granularities"):
            if getattr(self, name) is not None:
                raise _refused(name, "a job does not stream; leave it out")
        for name in (*SOURCES[1:], "reference_text"):
            if getattr(self, name) is not None:
                raise _refused(name, "a job speaks in registered voices; register it with POST /v1/audio/voices")
        if self.webhook_url is not None and not _is_secret(self.webhook_secret or ""):
            raise _refused("webhook_secret", "it must be base64 of 24 to 64 bytes, with or without whsec_ before it")


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
    """How long it takes from now on, as far as that can be told; null: it cannot."""
    error: JobError | None
    size: int | None
    """Bytes of the file of a completed one."""
    media_type: str | None
    warnings: list[str]
    segments: list[dict[str, Any]] | None
    """Of a completed one, and not in lists: where each part begins and ends, in seconds, and where it is written."""


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
