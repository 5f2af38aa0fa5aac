"""POST /v1/audio/text shows what would be spoken of a text, without speaking it."""

from __future__ import annotations

import asyncio
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from voice_clone_text.shown import shown

from ..http.auth import guarded
from ..http.errors import documented
from ..schemas import SpeechRequest
from ..services import services_of
from ..speech.segments import plans_of
from ..speech.synthesis import check_request

router = APIRouter(route_class=guarded("speak"), tags=["speech"])


class Replaced(BaseModel):
    """A part of the spoken text that is written otherwise in the request."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    spoken: tuple[int, int]
    """Begin and end in the item's text."""
    written: tuple[int, int]
    """Begin and end in the request's text."""


class Item(BaseModel):
    """A piece of text that is spoken at once, or a silence."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    type: Literal["speech", "silence"]
    segment: int
    """The index of the request's segment that it belongs to."""
    text: str | None = None
    seconds: float | None = None
    """The length of a silence."""
    start: int | None = None
    """Where it is written: its first character in the text of its segment."""
    end: int | None = None
    voice: str | None = None
    language: str | None = None
    rate: float | None = None
    """Factor of the tempo."""
    gain: float | None = None
    """Factor of the volume."""
    replaced: list[Replaced] | None = None
    """The parts that are written otherwise; each other character of `text` is one of the request's."""


class Mark(BaseModel):
    """A `<mark>` of SSML."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    name: str
    item: int
    """The index of the item that has the mark in it or follows it."""
    character: int
    """How many characters of the item come before it."""


class TextPlan(BaseModel):
    items: list[Item]
    marks: list[Mark]
    warnings: list[str]


@router.post(
    "/v1/audio/text", responses=documented(400, 401, 403, 413, 429, 501, 503), response_model_exclude_none=True
)
async def plan_text(payload: SpeechRequest, request: Request) -> TextPlan:
    """Show what would be spoken: each piece with its voice and tempo, silences, marks, and what has no effect."""
    services = services_of(request)
    check_request(services.settings, payload)
    with request.state.key.gate.pass_through(), services.gate.pass_through():  # a plan may take as long as a speech
        dictionaries, warnings = await services.dictionaries.chosen(services, request.state.client, payload)
        found = await asyncio.to_thread(lambda: [*plans_of(payload, dictionaries)])
    plan = TextPlan.model_validate(shown(planned for _, planned in found))
    plan.warnings[:0] = warnings
    return plan
