"""Batches: many texts in one file of JSON lines, each of which becomes a job.

    {"custom_id": "a", "method": "POST", "url": "/v1/audio/speech", "body": {"input": "...", "voice": "..."}}

The form is that of OpenAI's batches. A line that cannot be read refuses the batch; one whose body is wrong fails alone.
The results are JSON lines, too: those that have a file, which has the id of the job, and the others.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from voice_clone_client import InvalidArgument

from ..http.errors import HTTPFailure, failure
from ..http.json_bounds import parse_json
from ..http.keys import Key
from ..schemas import Strict
from ..services import Services
from .batch_tables import MOST_LINES, Batch, Progress, SentFile
from .files import DAY
from .keeper import Jobs
from .refusals import too_many
from .schemas import JobAnswer, JobRequest, kept_error
from .tables import Job, TooMany

URL = "/v1/audio/speech"
OUTPUT: Mapping[str, Collection[str]] = {"output": ("completed",), "errors": ("failed", "cancelled")}
"""The files of results: which lines each has, by their status."""
_PAGE = 500  # lines that are read at once


class Line(Strict):
    """A line of a file."""

    custom_id: Annotated[str, Field(min_length=1, max_length=256, pattern="^[^\x00-\x1f\x7f]*$")]
    method: Literal["POST"]
    url: Literal["/v1/audio/speech"]
    body: dict[str, Any]
    """That of POST /v1/audio/jobs without webhooks."""


class Batches:
    """The batches of a gateway, and the files that callers send.

    Args:
        services: of the gateway.
        jobs: of it.
    """

    def __init__(self, services: Services, jobs: Jobs) -> None:
        self._services, self._settings, self._jobs = services, services.settings, jobs

    async def send(self, key: Key, name: str, text: str) -> SentFile:
        """Keep a file.

        Raises:
            HTTPFailure: 400, it is no text; 429, the key has too much.
        """
        if "\0" in text:
            raise HTTPFailure(400, "file: it has a zero byte; send JSON lines", "invalid_argument", param="file")
        await self._jobs.check_room(key)
        size = len(text.encode())
        file = SentFile(f"file-{uuid.uuid4().hex}", key.turns, name.replace("\0", ""), size, time.time())
        files = self._jobs.files
        try:
            await files.aside(files.batches.add_file, file, text)
        except TooMany as error:
            raise too_many(error) from None
        return file

    async def file(self, key: Key, id: str) -> SentFile:
        """A file that the owner of a key sent.

        Raises:
            HTTPFailure: 404, it sent none of this id.
        """
        files = self._jobs.files
        file = await files.aside(files.batches.file, key.turns, id)
        if file is None:
            raise HTTPFailure(404, "there is no such file; GET /v1/files lists all", "file_not_found", param="id")
        return file

    async def create(self, key: Key, request_id: str, file: SentFile, metadata: Mapping[str, str] | None) -> Batch:
        """Make a job of each line of a file.

        Raises:
            HTTPFailure: 400, a line cannot be read; 429, the key has too much.
            VoiceCloneError: the server does not answer.
        """
        files = self._jobs.files
        await self._jobs.check_room(key)
        kept = None if metadata is None else json.dumps(metadata)
        batch = Batch(f"batch_{uuid.uuid4().hex}", key.turns, file.id, kept, time.time())
        lines, ids = list[tuple[Job, str | None]](), set[str]()
        async for number, line in _lines(await files.aside(files.batches.text_of, file.id)):
            if line.custom_id in ids:
                raise _refused(f"line {number}: an earlier one has its custom_id {line.custom_id!r}, too")
            ids.add(line.custom_id)
            if len(lines) == MOST_LINES:
                raise _refused(f"it has more than {MOST_LINES} lines; make several batches")
            lines.append(await self._job(key, request_id, batch, line))
        if not lines:
            raise _refused("it has no line")
        try:
            await files.aside(files.batches.create, batch, lines)
        except TooMany as error:
            raise too_many(error) from None
        self._jobs.wake(key.turns)
        return batch

    async def _job(self, key: Key, request_id: str, batch: Batch, line: Line) -> tuple[Job, str | None]:
        """The job of a line, and the JSON of its request; one that is wrong has failed."""
        about: dict[str, Any] = {"family": "", "voice": None, "format": "", "characters": 0}
        text: str | None = None
        try:
            request = JobRequest.model_validate(line.body)
            if request.webhook_url is not None or request.webhook_secret is not None:
                why = "webhook_url: a line of a batch has none; leave it out"
                raise HTTPFailure(400, why, "invalid_argument", param="webhook_url")
            request.check_job(self._settings)
            about["family"] = await self._services.families.choose(request.model)
            about |= {"voice": (request.voice_name or "").replace("\0", "") or None, "format": request.response_format}
            about["characters"] = len(request.input)
            text = request.model_dump_json(exclude_unset=True)
        except (HTTPFailure, InvalidArgument, ValidationError) as error:
            now = time.time()
            ended = {"completed_at": now, "expires_at": now + self._settings.job_days * DAY}
            about |= {"status": "failed", "error": json.dumps(kept_error(failure(error, request_id))), **ended}
        job = Job(
            id=f"job_{uuid.uuid4().hex}",
            owner=key.turns,
            warnings="[]",
            webhook_url=None,
            webhook_secret=None,
            request_id=request_id,
            sentences=0,
            created_at=batch.created_at,
            mark=key.mark,
            batch=batch.id,
            custom_id=line.custom_id,
            **about,
        )
        return job, text

    async def get(self, key: Key, id: str) -> tuple[Batch, Progress]:
        """A batch of the owner of a key, and how far it is.

        Raises:
            HTTPFailure: 404, it has none of this id.
        """
        files = self._jobs.files
        batch = await files.aside(files.batches.get, key.turns, id)
        if batch is None:
            raise HTTPFailure(404, "there is no such batch; GET /v1/batches lists all", "batch_not_found", param="id")
        return batch, (await files.aside(files.batches.progress, [id]))[id]

    async def page(self, key: Key, limit: int, after: str | None) -> list[tuple[Batch, Progress]]:
        """Batches of the owner of a key, the newest first."""
        files = self._jobs.files
        found = await files.aside(files.batches.page, key.turns, limit, after)
        if not found:
            return []
        progress = await files.aside(files.batches.progress, [each.id for each in found])
        return [(each, progress[each.id]) for each in found]

    async def cancel(self, key: Key, id: str) -> None:
        """End the lines of a batch that have not ended. Raises: as `get`."""
        files = self._jobs.files
        batch, _ = await self.get(key, id)
        for job in await files.aside(files.batches.cancel, batch, self._settings.job_days * DAY):
            await self._jobs.cancel(key, job.id)

    async def results(self, batch: Batch, which: str) -> AsyncIterator[bytes]:
        """The JSON lines of the results of a batch, some at a time.

        Args:
            which: see `OUTPUT`.
        """
        files, after = self._jobs.files, None
        while found := await files.aside(files.batches.lines, batch.id, OUTPUT[which], after, _PAGE):
            yield "".join(f"{json.dumps(_result(job), ensure_ascii=False)}\n" for job in found).encode()
            after = found[-1].id


async def _lines(text: str) -> AsyncIterator[tuple[int, Line]]:
    """The lines of a file with their numbers; raises HTTPFailure."""
    for number, each in enumerate(text.split("\n"), 1):
        if not each.strip():
            continue
        try:
            yield number, Line.model_validate(await parse_json(each.encode(), "line"))
        except (HTTPFailure, ValidationError) as error:
            raise _refused(f"line {number}: {failure(error, '').body()['error']['message']}") from None


def _result(job: Job) -> Mapping[str, Any]:
    """The result of a line that has ended, in OpenAI's form."""
    answered, error = None, None
    if job.status == "completed":
        answered = 200, JobAnswer.of(job).model_dump(mode="json")
    elif job.status == "failed":
        detail = json.loads(job.error or "{}")
        answered = detail.pop("status", 500), {"error": detail}
    else:
        error = {"code": "batch_cancelled", "message": "the batch was cancelled before this line was spoken"}
    response = None if answered is None else {"status_code": answered[0], "request_id": job.request_id}
    if response is not None and answered is not None:
        response["body"] = answered[1]
    return {"id": job.id, "custom_id": job.custom_id, "response": response, "error": error}


def _refused(why: str) -> HTTPFailure:
    return HTTPFailure(400, f"input_file_id: {why}", "invalid_batch", param="input_file_id")
