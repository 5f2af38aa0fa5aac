"""The kept dictionaries that a speech uses: those that its request names, and those that are for it by default."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from voice_clone_client import AsyncClient, VoiceCloneError, VoiceNotFound
from voice_clone_client.fields import SOURCES
from voice_clone_client.requests import PAGE
from voice_clone_client.types import name_key
from voice_clone_text.dictionary import Dictionary, Scoped
from voice_clone_text.languages import code_of
from voice_clone_text.pieces import Style

from ..http.errors import HTTPFailure
from ..schemas import TextOptions
from ..services import Services
from ..voices.ids import OPENAI_PREFIX, voice_id
from .kept_dictionaries import Kept, versions_of

FRESH = 1.0
"""Seconds for which the list of an owner's dictionaries holds: so late are the changes of other gateways seen."""
FORGOTTEN = 600.0
"""Seconds after which what was read is read again."""
MOST_RULES = 100_000  # of all dictionaries in memory, which take about 70 MB then
MOST_DEFAULTS = 8  # of a speech


class Chosen(NamedTuple):
    """The dictionaries of a speech, the first before the others."""

    dictionaries: Sequence[Scoped] = ()
    warnings: Sequence[str] = ()


class _Owner:
    """What is known of the dictionaries that a caller may use."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        self.asked = -math.inf
        self.changes = 0  # that this gateway has made
        self.lock = asyncio.Lock()
        self.asking: asyncio.Task[None] | None = None

    def defaults(self, owner: str | None) -> list[Kept]:
        """The owner's default dictionaries: of a voice, of all speech, of a language."""
        own = [kept for kept in self.kept.values() if kept.about.default and kept.owner == owner]
        return sorted((kept for kept in own if kept.about.archived is None), key=lambda kept: (_rank(kept), kept.id))


class Dictionaries:
    """Those that speeches use, as far as this gateway has read them, for one event loop."""

    def __init__(self) -> None:
        self._owners: dict[str | None, _Owner] = {}
        self._ready: OrderedDict[tuple[str, str], asyncio.Task[Dictionary]] = OrderedDict()  # by id and version

    async def chosen(self, services: Services, client: AsyncClient, request: TextOptions) -> Chosen:
        """The dictionaries of a request, or of a session.

        Raises:
            HTTPFailure: the request names one that is not there.
            VoiceCloneError: the server had to be asked, and did not answer.
        """
        named = [(each.dictionary, each.version) for each in request.pronunciations or () if each.dictionary]
        of = await self._known(client, bool(named))
        found, warnings = list[Scoped](), list[str]()

        async def add(kept: Kept, version: str | None, applies: Callable[[Style], bool] | None = None) -> None:
            dictionary = await self._dictionary(client, kept, version)
            found.append(Scoped(dictionary, applies) if applies else Scoped(dictionary))
            if dictionary.phonemes:
                text = f"{dictionary.phonemes} phonemes of the dictionary {kept.about.name!r} are ignored"
                warnings.append(f"{text}: no model here speaks them")

        for id, version in named:
            if id not in of.kept:
                await self._ask(client, of)  # it may be new
            if id not in of.kept:
                raise _missing(f"there is no dictionary {id!r}; GET /v1/pronunciation-dictionaries lists all")
            await add(of.kept[id], version)
        defaults = [kept for kept in of.defaults(client.owner) if kept.id not in dict(named)][:MOST_DEFAULTS]
        if any(kept.about.voice for kept in defaults):
            default_voice = await _voice_of(services, client, request)
        else:
            default_voice = None
        for kept in defaults:
            applies = _scope(kept, default_voice, request.language)
            styles = request.styles
            if styles is None or any(map(applies, styles)):
                await add(kept, None, applies)
        return Chosen(found, warnings)

    def forget(self, owner: str | None, id: str | None = None) -> None:
        """Follow a change that a caller has made."""
        for each, of in self._owners.items():
            if owner is None or each in (owner, None):
                of.asked, of.changes = -math.inf, of.changes + 1
        for key in [key for key in self._ready if key[0] == id]:
            del self._ready[key]

    async def _known(self, client: AsyncClient, named: bool) -> _Owner:
        """What is known of a caller's dictionaries.

        It is not older than `FRESH` where one is named, or is a default. Others do not wait for the server again: a
        first default of another gateway is then seen by the speech after.
        """
        of = self._owners.get(client.owner)
        if of is None:
            of = self._owners[client.owner] = _Owner()
            asyncio.get_running_loop().call_later(FORGOTTEN, self._owners.pop, client.owner, None)
        if time.monotonic() - of.asked <= FRESH:
            return of
        if named:
            await self._ask(client, of)
        elif of.asked < 0 or of.defaults(client.owner):
            with suppress(VoiceCloneError):  # speech that names none does without, as with an older server
                await self._ask(client, of)
        elif of.asking is None or of.asking.done():
            of.asking = asyncio.create_task(self._ask(client, of))
            of.asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        return of

    async def _ask(self, client: AsyncClient, of: _Owner) -> None:
        """Read the list of a caller's dictionaries, and drop the rules of those that are gone."""
        asked = time.monotonic()
        async with of.lock:
            if of.asked >= asked:  # meanwhile
                return
            changes = -1
            while changes != of.changes:
                began, changes = time.monotonic(), of.changes
                found = {kept.id: kept for kept in await all_kept(client)}
            gone, of.kept, of.asked = of.kept.keys() - found, found, began
            for key in [key for key in self._ready if key[0] in gone]:
                del self._ready[key]

    async def _dictionary(self, client: AsyncClient, kept: Kept, version: str | None) -> Dictionary:
        """The dictionary of a version; of the newest one for None."""
        key = kept.id, version or kept.about.version
        task = self._ready.get(key)
        if task is None:
            task = self._ready[key] = asyncio.create_task(_read(client, kept.id, version))
            task.add_done_callback(lambda _: self._make_room())
            asyncio.get_running_loop().call_later(FORGOTTEN, self._drop, key, task)
        self._ready.move_to_end(key)
        try:
            return await asyncio.shield(task)
        except VoiceNotFound:
            raise _missing(f"there is no dictionary {kept.id!r} any more") from None

    def _drop(self, key: tuple[str, str], task: asyncio.Task[Dictionary]) -> None:
        if self._ready.get(key) is task:
            del self._ready[key]

    def _make_room(self) -> None:
        """Drop failed reads, also those without a waiting caller, and what was used least recently."""
        ready = [(key, task) for key, task in self._ready.items() if task.done()]
        for key, task in ready:
            if task.cancelled() or task.exception() is not None:
                self._drop(key, task)
        ready = [(key, task) for key, task in ready if key in self._ready]
        rules = sum(task.result().size for _, task in ready)
        for key, task in ready[:-1]:
            if rules > MOST_RULES:
                rules -= task.result().size
                self._drop(key, task)


async def all_kept(client: AsyncClient) -> list[Kept]:
    """All dictionaries that a caller may use, by id."""
    found, after = list[Kept](), None
    while page := await client.dictionaries(limit=PAGE, after=after):
        found += [kept for kept in map(Kept.of, page) if kept is not None]
        if len(page) < PAGE:
            break
        after = page[-1].id
    return found


async def _read(client: AsyncClient, id: str, version: str | None) -> Dictionary:
    found = await client.dictionary(id)

    def read() -> Dictionary:
        versions = versions_of(found)
        chosen = next((each for each in versions if each.id == version), None) if version else versions[0]
        if chosen is None:
            ids = ", ".join(each.id for each in versions[:3])
            raise _missing(f"the dictionary {id!r} has no version {version!r}; its newest are {ids}")
        return chosen.dictionary()

    return await asyncio.to_thread(read)


async def _voice_of(services: Services, client: AsyncClient, request: TextOptions) -> str | None:
    """The voice of words that the text gives no other one."""
    if any(getattr(request, name) is not None for name in SOURCES if name != "voice"):
        return None
    return (await services.voice_names.choose(request.voice_name, client.owner))[0]


def _scope(kept: Kept, default_voice: str | None, language: str | None) -> Callable[[Style], bool]:
    """For which words a default dictionary is."""
    about, spoken = kept.about, code_of(kept.about.language)
    voices = set[str]()
    if about.voice:
        ids = [voice_id(owner, about.voice) for owner in (kept.owner, None)]
        voices = {name_key(about.voice), *ids, *(OPENAI_PREFIX + id for id in ids)}

    def applies(style: Style) -> bool:
        if voices and name_key(style.voice or default_voice or "") not in voices:
            return False
        return not spoken or code_of(style.language or language) == spoken

    return applies


def _rank(kept: Kept) -> int:
    return 0 if kept.about.voice else 2 if kept.about.language else 1


def _missing(text: str) -> HTTPFailure:
    return HTTPFailure(404, text, "dictionary_not_found", param="pronunciations")
