"""The voices that a caller may use, as the APIs of vendors list them: registered ones, and those that models bring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from voice_clone_client import Voice, VoiceNotFound

from ..services import services_of
from ..voices.ids import voice_name

_PAGE = 1000
T = TypeVar("T")


@dataclass(frozen=True)
class Listed:
    """A voice of a list."""

    id: str
    name: str
    voice: Voice | None
    """The registered one; None: a model brings it."""
    model: str | None = None
    """That brings it."""


async def listed(request: Request) -> list[Listed]:
    """All voices that a caller may use, but for those of models in whose place a registered voice speaks."""
    found, after = await _presets(request), None
    while some := await request.state.client.list(limit=_PAGE, after=after):
        found += [registered(request, voice) for voice in some]
        after = some[-1].name
    return found


async def find(request: Request, text: str) -> Listed:
    """The voice of an id or a name.

    Raises:
        VoiceNotFound: the caller has none.
    """
    name = await voice_name(request, text)
    try:
        return registered(request, await request.state.client.get(name))
    except VoiceNotFound:
        preset = next((each for each in await _presets(request) if each.name == name), None)
        if preset is None:
            raise
        return preset


async def _presets(request: Request) -> list[Listed]:
    """The voices of models, but for those in whose place a registered voice speaks."""
    return [
        Listed(_id(request, None, preset.name), preset.name, None, preset.model_type)
        for preset in await request.state.client.presets()
        if not preset.registered
    ]


def registered(request: Request, voice: Voice) -> Listed:
    """A registered voice."""
    return Listed(_id(request, voice.owner, voice.name), voice.name, voice)


def is_own(request: Request, each: Listed) -> bool:
    """Whether it is the caller's own voice."""
    return each.voice is not None and each.voice.owner == request.state.client.owner


def description_of(request: Request, each: Listed) -> str | None:
    """What is written about a voice, for a caller who manages voices."""
    return each.voice.description if each.voice is not None and "manage" in request.state.key.scopes else None


def page(
    entries: Sequence[T], id: Callable[[T], str], most: int, after: str | None = None, before: str | None = None
) -> tuple[list[T], bool]:
    """The entries behind an id, or before one, in the order of their ids; and whether there are more beyond them."""
    ordered = sorted(entries, key=id)
    left = [each for each in ordered if (not after or id(each) > after) and (not before or id(each) < before)]
    chosen = left[-most:] if before and not after else left[:most]
    return chosen, len(left) > len(chosen)


def _id(request: Request, owner: str | None, name: str) -> str:
    ids = services_of(request).voice_ids
    return ids.remember(request.state.client, owner, name)
