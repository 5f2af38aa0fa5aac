"""What requests for jobs are answered that cannot be met."""

from __future__ import annotations

from ..http.errors import HTTPFailure, limit_reached
from .tables import TooMany


def lost() -> HTTPFailure:
    """The answer to a request for the file of a completed job that is no more."""
    message = "the file of this job is lost or damaged; make the job again: sentences that are kept are not made"
    return HTTPFailure(410, message, "file_lost")


def voice_deleted() -> HTTPFailure:
    """The end of a job whose voice is gone, and the answer to a request for its file."""
    return HTTPFailure(410, "a voice of this job was deleted or replaced, and its speech with it", "voice_deleted")


def key_reused() -> HTTPFailure:
    """The answer to a request with the Idempotency-Key of another one."""
    message = "this Idempotency-Key is that of another request; take a new one for each job"
    return HTTPFailure(422, message, "idempotency_key_reused")


def too_many(error: TooMany) -> HTTPFailure:
    """The answer to a key that has as many as it may have."""
    return limit_reached(f"{error}", "too_many_jobs", 60)
