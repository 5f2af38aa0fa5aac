"""A whole job: its plan, its sentences, its file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from voice_clone_client import InvalidArgument

from ..audio import find_format
from ..http.errors import limit_reached
from ..http.keys import Key, caller_of
from ..places import Places
from ..services import Services
from ..speech.synthesis import long_plan, order
from .assembly import assemble
from .files import JobFiles
from .making import Making, VoiceGone, Way, digest_of_voice, orders_of, ways_of
from .plan import JobPlan, PlannedSentence, plan_of, sentences_of
from .schemas import JobRequest
from .sentences import KeptSentence, Missing
from .tables import Job, Result

PIECE = 1000  # addresses of one call in the thread of the files
WRITERS = 8
"""Files that are written at once: one owner's book of hours does not hold up the two lines of another one."""
PLANNED_AT_ONCE = 20_000
"""Characters of the longest text that is planned before its job is acknowledged, so that what is wrong is refused."""


@dataclass(frozen=True)
class Planned:
    """What a job speaks, and how the server would speak it now."""

    plan: JobPlan
    ways: Sequence[Way]
    sentences: Sequence[PlannedSentence]
    addresses: Sequence[str]
    """Of all attempts at all sentences."""

    @property
    def voices(self) -> set[str]:
        """The digests of its voices."""
        return {way.voice for way in self.ways}


class Work:
    """Makes jobs.

    Args:
        services: of the gateway.
        files: where they are kept.
    """

    def __init__(self, services: Services, files: JobFiles) -> None:
        self._services, self._settings, self._files = services, services.settings, files
        self._places = Places(services.settings.job_parallel)
        self._writers = ThreadPoolExecutor(WRITERS, "job files")

    async def close(self) -> None:
        """Wait until no file is written."""
        await asyncio.to_thread(self._writers.shutdown)

    async def check(self, key: Key, request: JobRequest) -> str:
        """See whether a job can be made, as far as that shows without its plan. Returns its family.

        Raises:
            HTTPFailure, VoiceCloneError: it cannot.
        """
        services = self._services
        client = services.clients.of(key)
        await services.dictionaries.chosen(services, client, request)
        if request.voice_name is not None:
            ordered = await order(services, client, request, lambda count: None)
            await digest_of_voice(client, str(ordered.arguments["voice"]), ordered.arguments["style"])
        return await services.families.choose(request.model)

    async def planned(self, key: Key, request: JobRequest) -> Planned:
        """The plan of a new job.

        Raises:
            HTTPFailure, VoiceCloneError: it cannot be made.
        """
        services = self._services
        client = services.clients.of(key)
        chosen, ignored = await services.dictionaries.chosen(services, client, request)
        family = await services.families.choose(request.model)
        await services.families.get(family)  # from now on it is known how long its sentences may be
        most = long_plan(services, family).max_characters
        async with services.after_speech.turn():
            plan = await asyncio.to_thread(plan_of, request, chosen, most)
        key.characters.check(plan.longest, "a sentence")
        orders = await orders_of(services, client, request, plan)
        warnings = [*ignored, *plan.warnings, *(text for each in orders for text in each.warnings)]
        if warnings and self._settings.strict:
            raise InvalidArgument(f"`text`: {warnings[0]}; leave it out, this gateway is strict")
        ways = await ways_of(services, client, orders)
        # Of a list of styles the job keeps the one that the voice has now: others may come while it is made.
        found = [
            {name: way.ordered.arguments["style"] if name == "style" else value for name, value in each.items()}
            for each, way in zip(plan.ways, ways, strict=True)
        ]
        plan = replace(plan, ways=found, warnings=[*dict.fromkeys(warnings)])
        return await self._addressed(key, request, plan, ways)

    async def check_room(self, key: Key) -> None:
        """See whether a key may keep one more file.

        Raises:
            HTTPFailure: 429, it has too much.
        """
        most = self._settings.job_bytes
        if await self._files.aside(self._files.tables.held, key.turns) >= most:
            message = f"the files of this key's jobs have {most} bytes, its maximum; delete jobs with DELETE"
            raise limit_reached(message, "too_many_bytes", 60)

    async def _addressed(self, key: Key, request: JobRequest, plan: JobPlan, ways: Sequence[Way]) -> Planned:
        attempts = 1 if request.do_sample is False else 1 + self._settings.missed_end_retries
        asked, seed = [way.asked(key) for way in ways], request.seed or 0

        def addressed() -> Planned:
            found = list[PlannedSentence]()
            for each in sentences_of(plan, key.turns, asked, seed, attempts):
                found.append(each)
                time.sleep(0)  # other threads go on
            return Planned(plan, ways, found, [address for each in found for address in each.addresses])

        return await asyncio.to_thread(addressed)

    async def make(self, key: Key, job: Job, began: Callable[[Making], None]) -> tuple[Result, Mapping[str, Any]]:
        """Make a job with the synthesizers that there are now. Returns what it has become, and the server's info.

        Args:
            began: called when it is known what is missing.

        Raises:
            VoiceGone: one of its voices is not that with which it was planned.
            Lost: another gateway makes it, or it has ended.
            Exception: as `Making.run`; as `planned`, if it was not planned before.
        """
        files, services = self._files, self._services
        await files.aside(files.tables.start, job)
        asked, planned_text, voices = await files.aside(files.tables.texts_of, job.id)
        request = await asyncio.to_thread(JobRequest.model_validate_json, asked)
        if planned_text is None:
            planned = await self.planned(key, request)
            about = await asyncio.to_thread(columns_of, planned.plan)
            text = await asyncio.to_thread(planned.plan.dumps)
            await files.aside(files.tables.plan, job, text, planned.voices, about)
        else:
            plan = await asyncio.to_thread(JobPlan.loads, planned_text)
            client = services.clients.of(key)
            ways = await ways_of(services, client, await orders_of(services, client, request, plan))
            planned = await self._addressed(key, request, plan, ways)
            if planned.voices != voices:
                raise VoiceGone
        addresses = planned.addresses
        known = dict[str, KeptSentence]()
        for piece in pieces_of(addresses):
            await files.aside(files.tables.need, job.id, piece)
            known |= await files.aside(files.sentences.known, piece)
        partial_too = self._settings.allow_partial if request.allow_partial is None else request.allow_partial
        caller = caller_of(key.turns or "jobs", {"type": "http"})
        keep = partial(files.aside, files.sentences.put, job)
        about_all = services, key, caller, planned.ways, planned.sentences, known, keep, self._places, partial_too
        making = await asyncio.to_thread(Making, *about_all)
        began(making)
        while True:
            await making.run(self._settings.job_parallel)
            await self.check_room(key)
            try:
                return await self._file(key, job, request, planned, making)
            except Missing:  # a damaged one
                known = {}
                for piece in pieces_of(addresses):
                    known |= await files.aside(files.sentences.known, piece)
                await asyncio.to_thread(making.missed, [each for each in addresses if each not in known])

    async def _file(
        self, key: Key, job: Job, request: JobRequest, planned: Planned, making: Making
    ) -> tuple[Result, Mapping[str, Any]]:
        """Write the file of a job whose sentences are all there; see `make`.

        Raises:
            Missing: one of them is not.
        """
        files, services = self._files, self._services
        client, signing = services.clients.of(key), services.signing

        def found() -> tuple[list[str], dict[int, Mapping[str, Any]]]:
            addresses = [making.address_of(each) or "" for each in making.sentences]
            ways = {each.way: making.info_of(at) for each, at in zip(making.sentences, addresses, strict=True)}
            return addresses, ways

        addresses, info_of_way = await asyncio.to_thread(found)
        info, gains = info_of_way[making.sentences[0].way], list[np.float32]()
        for index, way in enumerate(planned.ways):
            ordered, target = way.ordered, way.ordered.loudness
            gains.append(
                np.float32(1.0)
                if target is None
                else await services.loudness.gain(client, ordered.arguments, info_of_way[index], target)
            )
        path, stopped = files.part_of(job.id), threading.Event()
        write = partial(
            assemble,
            planned.plan,
            request,
            addresses,
            gains,
            partial(files.blocking, files.sentences.read),
            path,
            signing.statement(job.family, info),
            stopped.is_set,
        )
        writing = asyncio.get_running_loop().run_in_executor(self._writers, write)
        try:
            made = await asyncio.shield(writing)
            kind = find_format(request.response_format).base_type
            if signing.signs(kind) and path.stat().st_size <= self._settings.max_answer_bytes:
                with services.account.holding("jobs") as held:
                    held.add(path.stat().st_size)
                    data = await asyncio.to_thread(path.read_bytes)
                    data = await signing.signed(data, kind, job.family, info, client, held)
                    await asyncio.to_thread(path.write_bytes, data)
            size, digest = await asyncio.to_thread(_settled, path)
            await files.keep_result(job)
        except BaseException:
            stopped.set()
            await asyncio.shield(_removed(writing, path))
            raise
        columns = {
            "done": making.done,
            "seconds": made.seconds,
            "size": size,
            "digest": digest,
            "media_type": made.media_type,
            "segments": json.dumps(made.segments),
        }
        return Result("completed", fields=columns), info


def pieces_of(addresses: Sequence[str]) -> Iterator[Sequence[str]]:
    """The addresses in pieces, between which the thread of the files works for others."""
    return (addresses[begin : begin + PIECE] for begin in range(0, len(addresses), PIECE))


def columns_of(plan: JobPlan) -> dict[str, Any]:
    """What a job's row says of its plan."""
    return {"sentences": plan.count, "characters": plan.characters, "warnings": json.dumps([*plan.warnings])}


async def _removed(writing: asyncio.Future[Any], path: Path) -> None:
    """Remove a file when it is not being written any more."""
    with suppress(Exception):  # its caller has it
        await writing
    await asyncio.to_thread(path.unlink, missing_ok=True)


def _settled(path: Path) -> tuple[int, str]:
    """Size and digest of a file, which is on the disk then."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
        os.fsync(file.fileno())
        return file.tell(), digest.hexdigest()
