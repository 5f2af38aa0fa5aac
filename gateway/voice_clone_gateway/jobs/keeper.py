"""The jobs of a gateway: keeps them, makes them one after the other for each owner, and reports their end."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from fastapi import Request
from voice_clone_client import Overloaded, Unsupported, VoiceCloneError, VoiceNotFound

from ..http.account import Full
from ..http.errors import HTTPFailure, failure
from ..http.idle_server import NotReady
from ..http.keys import Key
from ..services import Services, services_of
from ..settings import Settings
from ..speech.audited import audited_result
from .database import DatabaseFailed, ResultFile
from .files import DAY, JobFiles
from .job_keys import JobKeys
from .making import (
    LEAST_WAIT,
    LONGEST_WAIT,
    PATIENCE,
    TRANSIENT,
    Making,
    SynthesizerChanged,
    VoiceGone,
    end_of,
)
from .refusals import key_reused, lost, too_many, voice_deleted
from .schemas import JobRequest, JobsState, check_text, kept_error
from .tables import Job, KeyReused, Lost, Result, TooMany
from .webhooks import Webhooks, event_of
from .work import PLANNED_AT_ONCE, Planned, Work, columns_of, pieces_of

log = logging.getLogger(__name__)

FIRST = 0.5  # seconds for which the start of the gateway waits for the files
SWEEP = 60.0  # seconds between two looks for voices that are gone, and for what is too old
GONE = 300.0  # seconds for which no list may have had a voice before its speech is erased
ALL_GONE = DAY  # the same where a list is empty: the server may lack the folder of its voices
WORKED = 60.0  # seconds after which an attempt at a job counts as one that went well for some time
AGAIN = 5.0  # seconds after which a job is begun again whose end could not be written
UNREAD = 30.0  # seconds after which files that could not be read are tried again
CHANGES = 3  # of a synthesizer during a job, after which it fails
BEAT = 1.0  # seconds between two signs of life for the other gateways of a fleet


class Jobs:
    """All jobs; for one event loop.

    Args:
        settings: of the gateway.

    Raises:
        ValueError: see `JobFiles`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._files = JobFiles(settings)
        self._ready = asyncio.Event()  # the files are this gateway's
        self._unreadable = False
        self._making: dict[str, tuple[Job, asyncio.Task[None], Making | None]] = {}  # jobs, by their ids
        self._owners: dict[str, asyncio.Task[None]] = {}  # make the jobs of one owner
        self._woken: set[str] = set()  # owners with jobs that may not have been looked at
        self._tasks: list[asyncio.Task[Any]] = []
        self._told: dict[str, float] = {}  # why the jobs could not be used, and when that was logged
        self._missing: dict[str, float] = {}  # voices that the server did not list, by digest, and since when

    async def start(self, services: Services) -> None:
        """Take the files, and go on with the jobs in them. Waits a moment for that."""
        self._services = services
        self._work = Work(services, self._files)
        self._keys = JobKeys(services.keys, self._files.shared)
        self._webhooks = Webhooks(self._settings)
        self._tasks.append(asyncio.create_task(self._serve()))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ready.wait(), FIRST)

    async def close(self) -> None:
        """Stop. What was being made goes on with the next gateway."""
        await end_of([*self._tasks, *self._owners.values(), *(task for _, task, _ in self._making.values())])
        await self._work.close()
        if self._files.shared:
            with suppress(DatabaseFailed):
                await self._files.leave()
        await self._files.close()

    async def _serve(self) -> None:
        files = self._files
        while True:
            try:
                await files.open()
                for owner in await files.aside(files.tables.waiting):
                    self.wake(owner)
                break
            except Exception as error:
                self._tell("the jobs cannot be read; it is tried again", error)
                self._unreadable = True
                await files.let_go()  # another gateway may be able to
            await asyncio.sleep(BEAT if files.shared else UNREAD)
        self._unreadable = False
        self._ready.set()
        self._tasks.append(asyncio.create_task(self._webhooks.serve(files.tables.deliveries, files.aside)))
        if files.shared:
            self._tasks += [asyncio.create_task(self._beat()), asyncio.create_task(self._look())]
        while True:
            for step in (self._expire, self._erase, self._evict):  # each also if one before it fails
                try:
                    await step()
                except VoiceCloneError as error:
                    log.info("the jobs could not be swept: %s", error)
                except Exception:
                    log.exception("the jobs could not be swept")
            await asyncio.sleep(SWEEP)

    async def _beat(self) -> None:
        """Tell the other gateways that this one works."""
        while True:
            try:
                await self._files.beat()
                self._unreadable = False
            except Exception as error:
                self._tell("other gateways may take over the jobs of this one", error)
                self._unreadable = True
            await asyncio.sleep(BEAT)

    async def _look(self) -> None:
        """See which jobs are this gateway's no more, and take over those of gateways that do not work."""
        files = self._files
        while True:
            try:
                making = [
                    (job, self._so_far(id)) for id, (job, _, making) in self._making.items() if making is not None
                ]
                for id in await files.aside(files.tables.note, making):
                    if id in self._making:
                        self._making[id][1].cancel()
                for owner in await files.aside(files.tables.waiting):
                    self.wake(owner)
            except Exception as error:
                self._tell("the jobs of other gateways could not be looked at", error)
            await asyncio.sleep(BEAT)

    def _tell(self, text: str, error: Exception) -> None:
        """Log why the jobs cannot be used: the same again only after some time."""
        known = isinstance(error, (DatabaseFailed, ValueError))
        reason = f"{text}: {' '.join(str(error.__cause__ or error).split())}"
        now = time.monotonic()
        if now - self._told.get(reason, -UNREAD) >= UNREAD:
            self._told = {**{each: since for each, since in self._told.items() if now - since < UNREAD}, reason: now}
            log.error("%s", reason, exc_info=None if known else error)

    @property
    def state(self) -> JobsState:
        """Whether they are this gateway's, those of another one, or cannot be read, as the log says."""
        return "unreadable" if self._unreadable else "ready" if self._ready.is_set() else "waiting"

    @property
    def files(self) -> JobFiles:
        """What is kept of them. Raises: Overloaded, it is not this gateway's."""
        if self.state != "ready":
            if self._unreadable:
                raise Overloaded("the jobs of this gateway cannot be read; the reason is in its log")
            raise Overloaded("the jobs of this gateway are not read yet")
        return self._files

    async def create(self, key: Key, request_id: str, request: JobRequest, idempotency: str | None) -> Job:
        """Keep a new job, which is made from now on; or the one that the same request made before.

        Args:
            idempotency: the Idempotency-Key of the request.

        Raises:
            HTTPFailure, VoiceCloneError: it cannot be made, or there are too many.
        """
        files, settings, owner = self.files, self._settings, key.turns
        for name in ("voice_name", "webhook_url", "webhook_secret"):
            check_text(name.removesuffix("_name"), getattr(request, name))
        check_text("Idempotency-Key", idempotency)
        text = request.model_dump_json(exclude_unset=True)
        body = hashlib.sha256(text.encode()).hexdigest()
        if idempotency is not None:
            try:
                known = await files.aside(files.tables.made_before, owner, idempotency, body)
            except KeyReused:
                raise key_reused() from None
            if known is not None:
                return known
        request.check_job(settings)
        if request.webhook_url is not None:
            await self._webhooks.check(request.webhook_url)
        await self.check_room(key)
        planned: Planned | None = None
        about: dict[str, Any] = {"sentences": 0, "characters": len(request.input), "warnings": "[]"}
        if len(request.input) <= PLANNED_AT_ONCE:
            planned = await self._work.planned(key, request)
            about = columns_of(planned.plan)
        family = await self._work.check(key, request) if planned is None else planned.ways[0].ordered.family
        job = Job(
            id=f"job_{uuid.uuid4().hex}",
            owner=owner,
            family=family,
            voice=request.voice_name,
            format=request.response_format,
            webhook_url=request.webhook_url,
            webhook_secret=request.webhook_secret,
            request_id=request_id,
            mark=key.mark,
            created_at=time.time(),
            **about,
        )
        plan = None if planned is None else (planned.plan.dumps(), planned.voices)
        try:
            kept = await files.aside(files.tables.create, job, text, plan, idempotency, body)
        except KeyReused:
            raise key_reused() from None
        except TooMany as error:
            raise too_many(error) from None
        self.wake(owner)
        if kept is job and planned is not None:
            for piece in pieces_of(planned.addresses):
                await files.aside(files.tables.need, job.id, piece)
        return kept

    async def get(self, key: Key, id: str) -> Job:
        """A job of a key.

        Raises:
            HTTPFailure: 404, it has none of this id; 400, that cannot be one.
        """
        files = self.files
        check_text("id", id)
        job = await files.aside(files.tables.get, id)
        if job is None or job.owner != key.turns:
            raise HTTPFailure(404, "there is no such job; GET /v1/audio/jobs lists all", "job_not_found", param="id")
        return job

    async def page(self, key: Key, limit: int, after: str | None, newest_first: bool) -> list[Job]:
        """Jobs of a key; see `JobTables.page`."""
        files = self.files
        return await files.aside(files.tables.page, key.turns, limit, after, newest_first)

    async def cancel(self, key: Key, id: str) -> Job:
        """End a job of a key, unless it has ended. Raises: as `get`."""
        job = await self.get(key, id)
        if job.live:
            await self._end(job, Result("cancelled", fields=self._so_far(id)))
            await self._stop(id)
            job = await self.get(key, id)
        return job

    async def delete(self, key: Key, id: str) -> None:
        """Forget a job of a key and its file. Its sentences stay for other jobs. Raises: as `get`."""
        await self.cancel(key, id)
        await self._delete(id)

    async def check_room(self, key: Key) -> None:
        """See whether a key may keep one more file. Raises: HTTPFailure, 429: it has too much."""
        await self._work.check_room(key)

    def making(self, id: str) -> Making | None:
        """The sentences of a job, if they are being made."""
        return self._making[id][2] if id in self._making else None

    async def file(self, job: Job) -> ResultFile:
        """The file of a completed job, for `pieces`.

        Raises:
            HTTPFailure: 409, the job has not completed; 410, its file is no more.
        """
        if job.status != "completed":
            message = f"the job is {job.status}; it has a file when it is completed"
            raise HTTPFailure(409, message, "job_not_completed")
        if job.digest is None:
            raise voice_deleted()
        file = await self._files.open_result(job.id)
        if file is not None and file.size == job.size:
            return file
        if file is not None:
            file.close()
        log.error("the file of %s is lost or damaged", job.id)
        raise lost()

    def pieces(self, file: ResultFile, wanted: range) -> AsyncIterator[bytes]:
        """These bytes of a file, which is closed then."""
        return self._files.pieces(file, wanted)

    async def forget_voice(self, digest: str | None) -> None:
        """Erase all speech in a voice that was deleted; jobs in it end.

        Args:
            digest: of the generation; None does nothing.
        """
        if digest is None or not self._ready.is_set():
            return
        files = self._files
        for job in await files.aside(files.tables.in_voice, digest):
            if job.live:
                await self._fail(job, voice_deleted(), by_maker=False)
                await self._stop(job.id)
            await files.aside(files.tables.drop_file, job.id)
            await files.remove_result(job.id)
        await files.aside(files.sentences.forget_voice, digest)

    def wake(self, owner: str) -> None:
        """See to it that the jobs of an owner are made."""
        self._woken.add(owner)
        if owner not in self._owners:
            self._owners[owner] = asyncio.create_task(self._make_all(owner))

    async def _make_all(self, owner: str) -> None:
        """Make the jobs of an owner one after the other, and lines of a batch beside each other."""
        tasks = dict[asyncio.Task[None], Job]()
        try:
            while owner in self._woken or tasks:
                if owner in self._woken and len(tasks) < self._settings.job_parallel:
                    try:
                        beside = [*tasks.values()]
                        job = await self._files.aside(self._files.tables.claim, owner, self._keys.can, beside)
                    except DatabaseFailed as failed:
                        log.warning("the next job could not be read; it is tried again: %s", failed)
                        await asyncio.sleep(AGAIN)
                        continue
                    if job is None:
                        self._woken.discard(owner)
                    else:
                        task = asyncio.create_task(self._make(job))
                        self._making[job.id], tasks[task] = (job, task, None), job
                    continue
                ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                self._woken.add(owner)
                for task in ended:
                    del self._making[tasks.pop(task).id]
                    if not task.cancelled() and (error := task.exception()) is not None:
                        log.error("a job could not be brought to its end", exc_info=error)
                        await asyncio.sleep(AGAIN)
        finally:
            for task, job in tasks.items():
                task.cancel()
                del self._making[job.id]
            del self._owners[owner]

    async def _stop(self, id: str) -> None:
        """Stop making a job, and wait until that is so."""
        if id in self._making:
            await end_of([self._making[id][1]])

    async def _make(self, job: Job) -> None:
        """Make a job to its end, whatever that is."""
        key = self._keys.of(job)
        if key is None:
            message = "the key that made this job is no more; ask the operator of this gateway for another one"
            await self._fail(job, HTTPFailure(403, message, "key_removed", "permission_error"))
            return
        changes, wait = 0, LEAST_WAIT
        failing: float | None = None  # since when
        while True:
            began = time.monotonic()
            try:
                async with self._services.idle_server.running():
                    result, info = await self._work.make(key, job, partial(self._began, job.id))
                await self._end(job, result, info, by_maker=True)
                return
            except Lost:
                log.info("%s has ended, or another gateway makes it", job.id)
                return
            except VoiceNotFound as missing:  # it was there when a job was made; lines of batches are checked now
                await self._fail(job, voice_deleted() if job.batch is None else failure(missing, job.id))
                return
            except VoiceGone:
                await self._fail(job, voice_deleted())
                return
            except SynthesizerChanged:
                changes += 1
                if changes > CHANGES:
                    error = Overloaded("the servers make their sound in different ways; a job needs one that stays")
                    await self._fail(job, failure(error, job.id))
                    return
            except (*TRANSIENT, Full, NotReady) as error:  # of what is not a sentence
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

    def _began(self, id: str, making: Making) -> None:
        job, task, _ = self._making[id]
        self._making[id] = job, task, making

    async def _fail(self, job: Job, failed: HTTPFailure, by_maker: bool = True) -> None:
        await self._end(job, Result("failed", kept_error(failed), self._so_far(job.id)), by_maker=by_maker)

    def _so_far(self, id: str) -> Mapping[str, Any]:
        """The columns with what there is of a job that is being made."""
        making = self.making(id)
        return {} if making is None else {"done": making.done, "seconds": making.seconds}

    async def _end(
        self, job: Job, result: Result, info: Mapping[str, Any] | None = None, by_maker: bool = False
    ) -> Job | None:
        """Write how a job ended, and report it to the caller; None: it had ended before, or see `JobTables.end`."""
        return await asyncio.shield(asyncio.create_task(self._written(job, result, info, by_maker)))

    async def _written(self, job: Job, result: Result, info: Mapping[str, Any] | None, by_maker: bool) -> Job | None:
        """As `_end`; it goes on when its caller is cancelled, so that a job that has ended is in the audit log once."""
        files, event = self._files, event_of(job.id, result.status)
        ended = await files.aside(files.tables.end, job, result, event, self._settings.job_days * DAY, by_maker)
        if ended is None:
            return None
        key = self._keys.of(job) or Key(mark=job.mark)
        asked = {"source": "voice", **({} if key.mark is None else {"mark_rule": key.mark})}
        audit = self._services.audit
        with audit.act(key, job.request_id, "speech", job.voice, **asked, characters=job.characters) as entry:
            entry |= {"job": job.id, "outcome": (result.error or {}).get("code", "ok")}
            entry |= audited_result(info, result.fields.get("seconds", 0.0))
            if result.status == "cancelled":
                entry["outcome"] = "cancelled"
        if result.status != "completed":  # from now on no gateway keeps more of its file
            await files.remove_result(job.id)
        return ended

    async def _expire(self) -> None:
        """Delete jobs that are too old."""
        for job in await self._files.aside(self._files.tables.expired):
            await self._delete(job.id)
        await self._files.aside(self._files.batches.forget_old, self._settings.job_days * DAY)

    async def _evict(self) -> None:
        """Drop speech that is too old or too much."""
        while await self._files.aside(self._files.sentences.evict):
            pass
        await self._files.shrink()

    async def _erase(self) -> None:
        """Erase what was made in voices that are gone."""
        files = self._files
        if self._services.idle_server.idle:  # it is not asked: that would be in vain
            return
        kept = await files.aside(files.tables.voices)
        kept = {voice for voice in kept if not voice.startswith("preset ")}
        if not kept:  # asked for before the list: a voice that is new is not gone
            return
        try:
            voices = await self._services.client.list()
            listed = {clip.digest for each in voices for clip in (each, *each.styles.values())}
        except VoiceCloneError:  # a server that starts again may not have read its voices yet
            self._missing.clear()
            raise
        await files.aside(files.tables.listed, kept & listed)
        now, long = time.monotonic(), GONE if listed else ALL_GONE
        self._missing = {voice: self._missing.get(voice, now) for voice in kept - listed}
        gone = {voice for voice, since in self._missing.items() if now - since >= long}
        # The server of another gateway of a fleet may have it.
        for voice in await files.aside(files.tables.unlisted, gone, long):
            await self.forget_voice(voice)

    async def _delete(self, id: str) -> None:
        await self._files.aside(self._files.tables.delete, id)
        await self._files.remove_result(id)


def jobs_of(request: Request) -> Jobs:
    """The jobs of a request's gateway. Raises: Unsupported, it takes none."""
    jobs = services_of(request).jobs
    if jobs is None:
        raise Unsupported(
            "this gateway takes no jobs; its operator gives it a place for them with --jobs-dir or a database"
        )
    return jobs
