"""Makes the sentences that a job lacks.

Each one waits for a place, and behind listeners that wait for first audio. It is spoken for its caller as work of the
class batch, which stands still on the server while such a listener waits there. What is transient is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from voice_clone_client import (
    AsyncClient,
    BrokenStream,
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    Incomplete,
    Internal,
    InvalidArgument,
    Overloaded,
    VoiceNotFound,
)
from voice_clone_client.callers import on_behalf_of
from voice_clone_client.types import INSTRUCTIONS, NEUTRAL, clips_and_directions, is_whole, name_key

from ..http.errors import HTTPFailure
from ..http.keys import WORD, Key
from ..places import Places
from ..schemas import SpeechRequest
from ..services import Services
from ..speech.synthesis import Order, order
from .database import DatabaseFailed
from .plan import JobPlan, PlannedSentence
from .sentences import KeptSentence

TRANSIENT = (BrokenStream, Cancelled, ConnectionFailed, DeadlineExceeded, Overloaded, OSError)
"""What may pass: also a database of jobs that is away, which is Overloaded, and a full disk."""
PATIENCE = 3600.0  # seconds for which a job is tried without a new sentence
DIGESTED = 5.0  # seconds for which a server that has just started is asked what makes its sound
FAULTS = 5  # of the server at one sentence, after which the job fails
LEAST_WAIT, LONGEST_WAIT = 0.2, 5.0  # seconds between two attempts
LISTENERS = 0.5  # seconds that a sentence waits for the first audio of others
CANCELLED = 1.0  # seconds after which a task that goes on is cancelled again
log = logging.getLogger(__name__)

_OF_CALL = (
    "deadline",
    "require_whole",
    "seed",
    "model",
    "voice",
    "style",
)  # arguments that are no part of an address as such


async def end_of(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they are over. A cancellation may be lost in a call below, so it is repeated."""
    left = {*tasks}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCELLED)


class VoiceGone(Exception):
    """A voice of the job was deleted or replaced."""


class SynthesizerChanged(Exception):
    """The server makes its sound otherwise than it said."""


@dataclass(frozen=True)
class Way:
    """How sentences are spoken."""

    ordered: Order
    voice: str
    """The digest of a registered voice; of one that a model brings, `preset` and its name."""
    synthesizer: str

    def asked(self, key: Key) -> Mapping[str, Any]:
        """What the address of its sentences is made of, besides text and seed."""
        arguments = {name: value for name, value in self.ordered.arguments.items() if name not in _OF_CALL}
        mark = {} if key.mark is None else {"mark": key.mark}
        style = self.ordered.arguments["style"] or ""
        # The digest of the voice is that of the clip alone.
        more = {"style": style} if INSTRUCTIONS in style.lower() or ":" in style else {}
        return {**arguments, **mark, **more, "voice": self.voice, "synthesizer": self.synthesizer}


async def orders_of(services: Services, client: AsyncClient, request: SpeechRequest, plan: JobPlan) -> list[Order]:
    """The order of each way of a plan.

    Raises:
        HTTPFailure, VoiceCloneError: as `order`; also if one has no voice.
    """
    orders = []
    for way in plan.ways:
        ordered = await order(services, client, request.model_copy(update=way), lambda count: None)
        if ordered.voiceless:
            raise InvalidArgument("`voice` is missing; without one each sentence of a job would have another voice")
        orders.append(ordered)
    return orders


async def digest_of_voice(client: AsyncClient, name: str, style: str | None) -> tuple[str, str | None]:
    """What a voice in a style is in addresses, see `Way.voice`, and the style that it has: the first one of a list.

    Raises:
        VoiceNotFound: there is no such voice.
        InvalidArgument: it has no such style, or a name of the list cannot be one.
    """
    names, directions = clips_and_directions(style)
    try:
        found = await client.get(name)
    except VoiceNotFound:
        aliases = {name_key(alias): voice for alias, voice in (await client.aliases()).items()}
        meant = aliases.get(name_key(name), name)
        if all(name_key(preset.name) != name_key(meant) for preset in await client.presets()):
            raise
        if NEUTRAL not in names and names[-1] != INSTRUCTIONS:
            text = f"the voice {name!r} of the model has no `style` but {NEUTRAL}; leave it out"
            raise InvalidArgument(text) from None
        return f"preset {name_key(meant)}", style if directions or NEUTRAL not in names else None
    if not all(WORD.fullmatch(each) for each in names):  # the server looks at all names of a list, too
        rule = "must be 1 to 64 of A-Z, a-z, 0-9 and _ . -, and begin with a letter or digit"
        raise InvalidArgument(f"each name of a `style` {rule}")
    if (clip := found.clip(style)) is None:
        raise InvalidArgument(f"the voice {name!r} has no `style` {style!r}; it has {', '.join(found.all_styles)}")
    asked = next((each for each in names if each in found.all_styles), None)
    return str(clip.digest), style if style is None or asked is None else asked + directions


async def synthesizer_of(services: Services, family: str) -> str:
    """The digest of all that makes a family's sound; waits some seconds until the server knows it.

    Raises:
        VoiceCloneError: the server did not answer, or does not say it.
    """
    until = time.monotonic() + DIGESTED
    while True:
        families = await services.client.families(synthesizers=True)
        found = families.get(family)
        if found is not None and found.synthesizer is not None:
            return found.synthesizer
        if time.monotonic() > until:
            raise Overloaded(f"the server does not say yet what makes the sound of {family}")
        await asyncio.sleep(LEAST_WAIT)


async def ways_of(services: Services, client: AsyncClient, orders: Sequence[Order]) -> list[Way]:
    """The ways of a job, as the server speaks now. Raises: as the functions that it calls."""
    synthesizers = {family: await synthesizer_of(services, family) for family in {each.family for each in orders}}
    asked = [(str(each.arguments["voice"]), each.arguments["style"]) for each in orders]
    voices = {voice: await digest_of_voice(client, *voice) for voice in set(asked)}
    ways = []
    for each, (voice, style) in zip(orders, [voices[voice] for voice in asked], strict=True):
        ordered = replace(each, arguments={**each.arguments, "style": style})
        ways.append(Way(ordered, voice, synthesizers[each.family]))
    return ways


Keep = Callable[[str, Mapping[str, Any], Any, int], Awaitable[KeptSentence]]
"""Keeps a sentence: address, the server's info, samples, their rate."""


class Making:
    """The sentences of one job while they are made.

    Args:
        key: of the job.
        caller: for whom the server works.
        ways: see `Way`.
        sentences: of the job.
        known: those of them that are kept, by address.
        keep: keeps further ones.
        places: of the sentences of all jobs that are made at once.
        allow_partial: a sentence whose end the model missed in each attempt is taken as it is.

    Attributes:
        done: sentences that are there.
        seconds: of their sound.
    """

    def __init__(
        self,
        services: Services,
        key: Key,
        caller: str,
        ways: Sequence[Way],
        sentences: Sequence[PlannedSentence],
        known: dict[str, KeptSentence],
        keep: Keep,
        places: Places,
        allow_partial: bool,
    ) -> None:
        self._services, self._key, self._caller = services, key, caller
        self._client = services.clients.of(key)
        self._ways, self.sentences, self._known, self._keep = ways, sentences, known, keep
        self._places = places
        self._allow_partial = allow_partial
        self._began = self._progress = time.monotonic()
        self._characters_made = 0
        self._count()

    @property
    def seconds_left(self) -> float | None:
        """Until all are there, at the speed so far; None: it is not known."""
        if not self._characters_left:
            return 0.0
        if not self._characters_made:
            return None
        return (time.monotonic() - self._began) * self._characters_left / self._characters_made

    def address_of(self, sentence: PlannedSentence) -> str | None:
        """Where its speech is: of the first attempt that is whole, or else the last one, if it may be partial.

        None: it is to be made.
        """
        for address in sentence.addresses:
            if address not in self._known:
                return None
            if is_whole(self._known[address].info.get("finish_reason")):
                return address
        return sentence.addresses[-1] if self._allow_partial else None

    def info_of(self, address: str) -> Mapping[str, Any]:
        """The server's info on a sentence that is there."""
        return self._known[address].info

    def missed(self, addresses: Sequence[str]) -> None:
        """Of these, what was kept is damaged: make them again."""
        for address in addresses:
            self._known.pop(address, None)
        self._count()

    def _count(self) -> None:
        """See what there is, and what is left."""
        found = [self.address_of(each) for each in self.sentences]
        there = [self._known[address] for address in found if address is not None]
        self.done, self.seconds = len(there), sum(each.seconds for each in there)
        self._left = deque(each for each, address in zip(self.sentences, found, strict=True) if address is None)
        self._characters_left = sum(len(each.text) for each in self._left)

    async def run(self, at_once: int) -> None:
        """Make all that is missing.

        Raises:
            VoiceGone, SynthesizerChanged.
            Incomplete: the model missed the end of a sentence in each attempt.
            HTTPFailure, VoiceCloneError: the server refuses a sentence, or did not make one for long.
        """
        self._began = self._progress = time.monotonic()
        with on_behalf_of(self._caller, "batch"):
            workers = [asyncio.create_task(self._work()) for _ in range(min(at_once, len(self._left)))]
        try:
            await asyncio.gather(*workers)
        finally:
            await end_of(workers)

    async def _work(self) -> None:
        while self._left:
            sentence = self._left.popleft()
            for seed, address in zip(sentence.seeds, sentence.addresses, strict=True):
                if address not in self._known:
                    self._known[address] = await self._made(sentence, seed, address)
                if is_whole(self._known[address].info.get("finish_reason")):
                    break
            else:
                if not self._allow_partial:
                    raise Incomplete(self._known[address].info.get("finish_reason"))
            self._progress = time.monotonic()
            self._characters_left -= len(sentence.text)
            self._characters_made += len(sentence.text)
            self.done += 1
            self.seconds += self._known[address].seconds

    async def _made(self, sentence: PlannedSentence, seed: int, address: str) -> KeptSentence:
        """The speech of an attempt, which is tried until the server makes it."""
        wait, faults, charged = LEAST_WAIT, 0, False
        while True:
            try:
                async with self._places.place():
                    await self._services.listeners.served(LISTENERS)
                    with ExitStack() as gates:
                        gates.enter_context(self._key.gate.pass_through())
                        gates.enter_context(self._services.gate.pass_through())
                        if not charged:
                            self._key.characters.take(len(sentence.text))
                            charged = True
                        info, samples, rate = await self._spoken(sentence, seed)
                break
            except HTTPFailure as failed:
                if failed.status_code != 429:
                    raise
                wait = float((failed.headers or {}).get("Retry-After", wait))
            except TRANSIENT:
                if time.monotonic() - self._progress > PATIENCE:
                    raise
            except Internal:
                faults += 1
                if faults == FAULTS:
                    raise
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
        while True:  # it is not spoken again
            try:
                return await self._keep(address, info, samples, rate)
            except (DatabaseFailed, OSError) as error:
                if time.monotonic() - self._progress > PATIENCE:
                    raise
                log.warning("a sentence of a job could not be kept: %s", error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _spoken(self, sentence: PlannedSentence, seed: int) -> tuple[Mapping[str, Any], Any, int]:
        way = self._ways[sentence.way]
        asked = {**way.ordered.arguments, "seed": seed, "require_whole": False, "synthesizer": True}
        try:
            async with self._client.speak(sentence.text, **asked) as speech:
                samples, rate = await speech.read()
        except VoiceNotFound as error:
            raise VoiceGone from error
        info = speech.info or {}
        if info.get("synthesizer") is None:
            raise Overloaded("the server does not know yet what makes its sound")
        if info["synthesizer"] != way.synthesizer:
            raise SynthesizerChanged
        if not way.voice.startswith("preset ") and info.get("voice_digest") != way.voice:
            raise VoiceGone
        self._services.metrics.count_mark(self._key, info)
        return info, samples, rate
