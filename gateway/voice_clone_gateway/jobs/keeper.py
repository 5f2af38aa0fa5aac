"""The jobs of a gateway: kept, made one after the other for each owner, and told about.

The files in `jobs_dir` are one gateway's: it holds a lock, which the system frees whenever its process ends. Another
one with the same folder waits for it, and then goes on with its jobs.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from voice_clone_client import Overloaded, VoiceCloneError, VoiceNotFound

from ..audio import find_format
from ..http.auth import ANYONE
from ..http.errors import HTTPFailure, failure, limit_reached
from ..http.keys import Key, caller_of
from ..places import Places
from ..services import Services
from ..settings import Settings
from ..speech.audited import audited_result
from ..speech.synthesis import check_options, long_plan
from .assembly import assemble
from .making import (
    LEAST_WAIT,
    LONGEST_WAIT,
    PATIENCE,
    STORAGE,
    TRANSIENT,
    Making,
    SynthesizerChanged,
    VoiceGone,
    Way,
    orders_of,
    ways_of,
)
from .plan import JobPlan, PlannedSentence, plan_of, sentences_of
from .schemas import JobRequest
from .sentences import KeptSentence, Missing, SentenceStore, keep_durably
from .tables import Job, JobTables, KeyReused, Result, TooManyJobs, opened
from .webhooks import Webhooks, event_of

log = logging.getLogger(__name__)

T = TypeVar("T")

DAY = 24 * 3600.0
SWEEP = 60.0  # seconds between two looks for voices that are gone, and for what is too old
LOCKED = 0.2  # seconds between two attempts to take over the files of another gateway
WORKED = 60.0  # seconds after which an attempt at a job counts as one that went well for some time
AGAIN = 5.0  # seconds after which a job is begun again whose end could not be written
CHANGES = 3  # of a synthesizer during a job, after which it fails

_DELETED = HTTPFailure(410, "a voice of this job was deleted or replaced, and its speech with it", "voice_deleted")


class _Files(NamedTuple):
    """What lies in the folder."""

    tables: JobTables
    sentences: SentenceStore


class Jobs:
    """All jobs; for one event loop.

    Args:
        settings: of the gateway.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._folder = Path(settings.jobs_dir)
        self._thread = ThreadPoolExecutor(1, "jobs")  # of the tables and the files
        self._files: _Files | None = None
        self._file_thread = ThreadPoolExecutor(1, "job files")  # writes one after the other
        self._places = Places(settings.job_parallel)
        self._making: dict[str, tuple[asyncio.Task[None], Making | None]] = {}  # jobs, by their ids
        self._owners: dict[str, asyncio.Task[None]] = {}  # make the jobs of one owner
        self._woken: set[str] = set()  # owners with jobs that may not have been looked at
        self._tasks: list[asyncio.Task[Any]] = []
        self._lock: int | None = None

    # ------------------------------------------------------------------------------------------- its life

    def start(self, services: Services) -> None:
        """Take the files, and go on with the jobs in them.

        Raises:
            OSError: the folder cannot be made.
        """
        self._services = services
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._webhooks = Webhooks(self._settings)
        self._tasks.append(asyncio.create_task(self._serve()))

    async def close(self) -> None:
        """Stop. What was being made goes on with the next gateway."""
        running = [*self._tasks, *self._owners.values(), *(task for task, _ in self._making.values())]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.to_thread(self._file_thread.shutdown)
        await asyncio.to_thread(self._thread.shutdown)
        if self._lock is not None:
            os.close(self._lock)

    async def _serve(self) -> None:
        try:
            self._lock = await self._locked()
            self._files = await self._aside(self._open)
            for job in await self._aside(self._files.tables.live):
                self._wake(job.owner)
        except Exception:
            log.exception("the jobs cannot be read; this gateway has none")
            return
        self._tasks.append(asyncio.create_task(self._webhooks.serve(self._files.tables, self._aside)))
        while True:
            try:
                await self._sweep(self._files)
            except VoiceCloneError as error:
                log.info("the voices of jobs could not be looked for: %s", error)
            except Exception:
                log.exception("the jobs could not be swept")
            await asyncio.sleep(SWEEP)

    async def _locked(self) -> int:
        file = os.open(self._folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                if not told:
                    log.warning("another gateway has the jobs in jobs_dir; this one waits for it")
                told = True
                await asyncio.sleep(LOCKED)

    def _open(self) -> _Files:
        for name in ("results", "sentences"):
            (self._folder / name).mkdir(mode=0o700, exist_ok=True)
        connection, settings = opened(self._folder / "jobs.sqlite3"), self._settings
        tables = JobTables(connection, settings.max_jobs)
        days = settings.sentence_days * DAY
        store = SentenceStore(connection, self._folder / "sentences", settings.sentence_bytes, days)
        for path in (self._folder / "results").iterdir():
            job = tables.get(path.name)
            if job is None or job.digest is None:
                path.unlink()
        return _Files(tables, store)

    async def _aside(self, call: Callable[..., T], *arguments: Any) -> T:
        """The result of a call in the thread that has the files."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *arguments))

    @property
    def _opened(self) -> _Files:
        if self._files is None:
            raise Overloaded("the jobs of this gateway are not read yet")
        return self._files

    # ------------------------------------------------------------------------------------------- what callers do

    async def create(self, key: Key, request_id: str, request: JobRequest, idempotency: str | None) -> Job:
        """Keep a new job, which is made from now on; or the one that the same request made before.

        Args:
            idempotency: the Idempotency-Key of the request.

        Raises:
            HTTPFailure, VoiceCloneError: it cannot be made, or there are too many.
        """
        files, services, settings, owner = self._opened, self._services, self._settings, key.turns
        text = request.model_dump_json(exclude_unset=True)
        body = hashlib.sha256(text.encode()).hexdigest()
        if idempotency is not None:
            try:
                known = await self._aside(files.tables.made_before, owner, idempotency, body)
            except KeyReused:
                raise _reused() from None
            if known is not None:
                return known
        request.check_job()
        check_options(settings, request)
        if len(request.input) > settings.job_characters:
            message = f"input has {len(request.input)} characters; a job has at most {settings.job_characters}"
            raise HTTPFailure(400, message, "invalid_argument", param="input")
        if request.webhook_url is not None:
            await self._webhooks.check(request.webhook_url)
        client = services.clients.of(key)
        chosen, ignored = await services.dictionaries.chosen(services, client, request)
        family = await services.families.choose(request.model)
        await services.families.get(family)  # from now on it is known how long its sentences may be
        most = long_plan(services, family).max_characters
        async with services.after_speech.turn():
            plan = await asyncio.to_thread(plan_of, request, chosen, most)
        orders = await orders_of(services, client, request, plan)
        warnings = [*ignored, *plan.warnings, *(text for each in orders for text in each.warnings)]
        if warnings and settings.strict:
            message = f"input: {warnings[0]}; leave it out, this gateway is strict"
            raise HTTPFailure(400, message, "invalid_argument", param="input")
        plan = replace(plan, warnings=tuple(dict.fromkeys(warnings)))
        ways = await ways_of(services, client, orders)
        found = await self._sentences(key, request, plan, ways)
        addresses = [address for each in found for address in each.addresses]
        job = Job(
            id=f"job_{uuid.uuid4().hex}",
            owner=owner,
            family=orders[0].family,
            voice=request.voice_name,
            format=request.response_format,
            warnings=json.dumps(plan.warnings),
            webhook_url=request.webhook_url,
            webhook_secret=request.webhook_secret,
            request_id=request_id,
            sentences=plan.count,
            characters=plan.characters,
            created_at=time.time(),
        )
        try:
            texts, voices = (text, plan.dumps()), {way.voice for way in ways}
            kept = await self._aside(files.tables.create, job, texts, voices, addresses, idempotency, body)
        except KeyReused:
            raise _reused() from None
        except TooManyJobs:
            message = f"{settings.max_jobs} jobs of this key have not ended, its maximum; wait until one has"
            raise limit_reached(message, "too_many_jobs", 60) from None
        self._wake(owner)
        return kept

    async def get(self, key: Key, id: str) -> Job:
        """A job of a key.

        Raises:
            HTTPFailure: 404, it has none of this id.
        """
        job = await self._aside(self._opened.tables.get, id)
        if job is None or job.owner != key.turns:
            raise HTTPFailure(404, "there is no such job; GET /v1/audio/jobs lists all", "job_not_found", param="id")
        return job

    async def page(self, key: Key, limit: int, after: str | None, newest_first: bool) -> list[Job]:
        """Jobs of a key; see `JobTables.page`."""
        return await self._aside(self._opened.tables.page, key.turns, limit, after, newest_first)

    async def cancel(self, key: Key, id: str) -> Job:
        """End a job of a key, unless it has ended. Raises: as `get`."""
        job = await self.get(key, id)
        if job.live:
            await self._end(job, Result("cancelled", fields=self._so_far(id)))
            await self._stop(id)
        return await self.get(key, id)

    async def delete(self, key: Key, id: str) -> None:
        """Forget a job of a key and its file. Its sentences stay for other jobs. Raises: as `get`."""
        await self.cancel(key, id)
        await self._delete(id)

    def making(self, id: str) -> Making | None:
        """The sentences of a job, if they are being made."""
        return self._making.get(id, (None, None))[1]

    def file(self, job: Job) -> Path:
        """The file of a completed job.

        Raises:
            HTTPFailure: 409, the job has not completed; 410, its file is no more.
        """
        if job.status != "completed":
            message = f"the job is {job.status}; it has a file when it is completed"
            raise HTTPFailure(409, message, "job_not_completed")
        if job.digest is None:
            raise _DELETED
        return self._folder / "results" / job.id

    async def forget_voice(self, digest: str | None) -> None:
        """Erase all speech in a voice that was deleted; jobs in it end.

        Args:
            digest: of the generation; None does nothing.
        """
        if digest is None or self._files is None:
            return
        for job in await self._aside(self._files.tables.in_voice, digest):
            if job.live:
                await self._fail(job, _DELETED)
                await self._stop(job.id)
            await self._aside(self._files.tables.drop_file, job.id)
            await self._aside(partial((self._folder / "results" / job.id).unlink, missing_ok=True))
        await self._aside(self._files.sentences.forget_voice, digest)

    # ------------------------------------------------------------------------------------------- the work

    def _wake(self, owner: str) -> None:
        """See to it that the jobs of an owner are made."""
        self._woken.add(owner)
        if owner not in self._owners:
            self._owners[owner] = asyncio.create_task(self._make_all(owner))

    async def _make_all(self, owner: str) -> None:
        while owner in self._woken:
            self._woken.remove(owner)
            while (job := await self._aside(self._opened.tables.next_of, owner)) is not None:
                task = asyncio.create_task(self._make(job))
                self._making[job.id] = task, None
                try:
                    await asyncio.wait((task,))
                finally:
                    task.cancel()
                    del self._making[job.id]
                if not task.cancelled() and (error := task.exception()) is not None:
                    log.error("a job could not be brought to its end", exc_info=error)
                    await asyncio.sleep(AGAIN)
        del self._owners[owner]

    async def _stop(self, id: str) -> None:
        """Stop making a job, and wait until that is so."""
        if id in self._making:
            task, _ = self._making[id]
            task.cancel()
            await asyncio.wait((task,))

    async def _make(self, job: Job) -> None:
        """Make a job to its end, whatever that is."""
        key = self._key_of(job)
        if key is None:
            message = "the key that made this job is no more; ask the operator of this gateway for another one"
            await self._fail(job, HTTPFailure(403, message, "key_removed", "permission_error"))
            return
        changes, wait = 0, LEAST_WAIT
        failing: float | None = None  # since when
        while True:
            began = time.monotonic()
            try:
                await self._make_with(key, job)
                return
            except (VoiceGone, VoiceNotFound):  # it was there when the job was made
                await self._fail(job, _DELETED)
                return
            except SynthesizerChanged:
                changes += 1
                if changes > CHANGES:
                    error = Overloaded("the servers make their sound in different ways; a job needs one that stays")
                    await self._fail(job, failure(error, job.id))
                    return
            except (*TRANSIENT, *STORAGE) as error:  # of what is not a sentence
                now = time.monotonic()
                if failing is None or now - began > WORKED:
                    failing = now
                if now - failing > PATIENCE:
                    await self._fail(job, failure(error, job.id))
                    return
            except Exception as error:
                await self._fail(job, failure(error, job.id))
                return
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _make_with(self, key: Key, job: Job) -> None:
        """Make a job with the synthesizers that there are now."""
        files, services = self._opened, self._services
        texts = await self._aside(files.tables.texts_of, job.id)
        request, plan, voices = JobRequest.model_validate_json(texts[0]), JobPlan.loads(texts[1]), texts[2]
        client, settings = services.clients.of(key), self._settings
        orders = await orders_of(services, client, request, plan)
        ways = await ways_of(services, client, orders)
        if {way.voice for way in ways} != voices:
            raise VoiceGone
        found = await self._sentences(key, request, plan, ways)
        addresses = [address for each in found for address in each.addresses]
        await self._aside(files.tables.start, job.id, addresses)
        known = await self._aside(files.sentences.known, addresses)
        partial_too = settings.allow_partial if request.allow_partial is None else request.allow_partial

        async def keep(address: str, info: Mapping[str, Any], samples: Any, rate: int) -> KeptSentence:
            return await self._aside(files.sentences.put, job.id, job.owner, address, info, samples, rate)

        caller = caller_of(key.turns or "jobs", {"type": "http"})
        making = Making(services, key, caller, ways, found, known, keep, self._places, partial_too)
        self._making[job.id] = self._making[job.id][0], making
        while True:
            await making.run(settings.job_parallel)
            try:
                await self._finish(key, job, plan, request, making, ways)
                return
            except Missing:  # a damaged file
                known = await self._aside(files.sentences.known, addresses)
                making.missed([each for each in addresses if each not in known])

    async def _sentences(
        self, key: Key, request: JobRequest, plan: JobPlan, ways: Sequence[Way]
    ) -> list[PlannedSentence]:
        """The sentences of a job of this key."""
        attempts = 1 if request.do_sample is False else 1 + self._settings.missed_end_retries
        asked, seed = [way.asked(key) for way in ways], request.seed or 0
        return await asyncio.to_thread(lambda: [*sentences_of(plan, key.turns, asked, seed, attempts)])

    async def _finish(
        self, key: Key, job: Job, plan: JobPlan, request: JobRequest, making: Making, ways: Sequence[Way]
    ) -> None:
        """Write the file of a job whose sentences are all there.

        Raises:
            Missing: one of them is not.
        """
        files, services = self._opened, self._services
        client = services.clients.of(key)
        addresses = [making.address_of(each) or "" for each in making.sentences]
        info_of_way = {each.way: making.info_of(at) for each, at in zip(making.sentences, addresses, strict=True)}
        info, gains = info_of_way[making.sentences[0].way], list[np.float32]()
        for index, way in enumerate(ways):
            ordered, target = way.ordered, way.ordered.loudness
            gains.append(
                np.float32(1.0)
                if target is None
                else await services.loudness.gain(client, ordered.arguments, info_of_way[index], target)
            )
        comment = services.signing.statement(job.family, info)
        path, stopped = self._folder / "results" / f"{job.id}.part", threading.Event()

        def read(address: str) -> tuple[Any, int]:
            return self._thread.submit(files.sentences.read, address).result()

        write = partial(assemble, plan, request, addresses, gains, read, path, comment, stopped.is_set)
        try:
            made = await asyncio.get_running_loop().run_in_executor(self._file_thread, write)
            kind = find_format(request.response_format).base_type
            if services.signing.signs(kind) and path.stat().st_size <= self._settings.max_answer_bytes:
                with services.account.holding("jobs") as held:
                    held.add(path.stat().st_size)
                    data = await asyncio.to_thread(path.read_bytes)
                    data = await services.signing.signed(data, kind, job.family, info, client, held)
                    await asyncio.to_thread(path.write_bytes, data)
            size, digest = await asyncio.to_thread(_settled, path)
        except BaseException:
            stopped.set()
            path.unlink(missing_ok=True)
            raise
        columns = {
            "done": making.done,
            "seconds": made.seconds,
            "size": size,
            "digest": digest,
            "media_type": made.media_type,
            "segments": json.dumps(made.segments),
        }
        keep_durably(path, path.with_suffix(""))
        if await self._end(job, Result("completed", fields=columns), info) is None:
            path.with_suffix("").unlink(missing_ok=True)

    async def _fail(self, job: Job, failed: HTTPFailure) -> None:
        detail = failed.body()["error"]
        error = {"message": detail["message"], "code": detail["code"]}
        await self._end(job, Result("failed", error, self._so_far(job.id)))

    def _so_far(self, id: str) -> Mapping[str, Any]:
        """The columns with what there is of a job that is being made."""
        making = self.making(id)
        return {} if making is None else {"done": making.done, "seconds": making.seconds}

    async def _end(self, job: Job, result: Result, info: Mapping[str, Any] | None = None) -> Job | None:
        """Write how a job ended, and have its caller told; None: it had ended before."""
        key = self._key_of(job) or Key()
        asked = {"source": "voice", **({} if key.mark is None else {"mark_rule": key.mark})}
        audit = self._services.audit
        with audit.act(key, job.request_id, "speech", job.voice, **asked, characters=job.characters) as entry:
            entry |= {"job": job.id, "outcome": (result.error or {}).get("code", "ok")}
            entry |= audited_result(info, result.fields.get("seconds", 0.0))
            if result.status == "cancelled":
                entry["outcome"] = "cancelled"
            tables, event = self._opened.tables, event_of(job.id, result.status)
            return await self._aside(tables.end, job.id, result, event, self._settings.job_days * DAY)

    async def _sweep(self, files: _Files) -> None:
        """Delete what is too old, and what was made in voices that are gone."""
        for job in await self._aside(files.tables.expired):
            await self._delete(job.id)
        await self._aside(files.sentences.evict)
        kept = await self._aside(files.tables.voices)
        kept = {voice for voice in kept if not voice.startswith("preset ")}
        if kept:  # asked for before the list: a voice that is new is not gone
            for voice in kept - {each.digest for each in await self._services.client.list()}:
                await self.forget_voice(voice)

    async def _delete(self, id: str) -> None:
        await self._aside(self._opened.tables.delete, id)
        (self._folder / "results" / id).unlink(missing_ok=True)

    def _key_of(self, job: Job) -> Key | None:
        """The key of a job; None: there is none any more that may speak."""
        keys = self._services.keys
        if not keys:
            return None if job.owner else ANYONE
        return next((key for key in keys.all() if key.turns == job.owner and "speak" in key.scopes), None)


def _settled(path: Path) -> tuple[int, str]:
    """Size and digest of a file, which is on the disk then."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
        os.fsync(file.fileno())
        return file.tell(), digest.hexdigest()


def _reused() -> HTTPFailure:
    message = "this Idempotency-Key is that of another request; take a new one for each job"
    return HTTPFailure(422, message, "idempotency_key_reused")
