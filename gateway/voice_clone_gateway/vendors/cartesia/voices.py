"""Their voices: those of the server, by ids. A voice that is cloned needs the consent that `registering` describes."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated, Any

from fastapi import File, Form, Query, Request, Response, UploadFile
from voice_clone_client import InvalidArgument

from ..listing import Listed, description_of, find, is_own, listed, page, registered
from ..orders import Lenient, warn_of
from ..registering import plain_name, register, remove
from ..vendor import adapter

router = adapter()
manage = adapter("manage")
MOST = 100  # voices of a page


@router.get("/voices")
async def list_voices(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 10,
    starting_after: str | None = None,
    ending_before: str | None = None,
    q: str = "",
    is_owner: bool | None = None,
) -> dict[str, Any]:
    """`voices.list`. The SDK asks until a page is empty."""
    found = [each for each in await listed(request) if is_owner in (None, is_own(request, each))]
    if q:
        texts = {each.id: f"{each.name}\n{each.id}\n{description_of(request, each) or ''}".casefold() for each in found}
        found = [each for each in found if q.casefold() in texts[each.id]]
    some, more = page(found, lambda each: each.id, limit, starting_after, ending_before)
    return {"data": [_voice(request, each) for each in some], "has_more": more}


@router.get("/voices/{id}")
async def get(id: str, request: Request) -> dict[str, Any]:
    """`voices.get`."""
    return _voice(request, await find(request, id))


@manage.post("/voices/clone")
async def clone(
    request: Request,
    response: Response,
    clip: Annotated[UploadFile, File()],
    name: Annotated[str, Form(min_length=1)],
    description: Annotated[str | None, Form()] = None,
    accent: Annotated[str | None, Form()] = None,
    base_voice_id: Annotated[str | None, Form()] = None,
    reference_text: Annotated[str | None, Form()] = None,
    consent: Annotated[str | None, Form()] = None,
) -> dict[str, Any]:
    """`voices.clone`."""
    _warn(response, accent=accent, base_voice_id=base_voice_id)
    more = {"description": description, "reference_text": reference_text}
    voice = await register(request, name, [await clip.read()], consent, **more)
    return _voice(request, registered(request, voice))


class Changes(Lenient):
    """The body."""

    name: str | None = None
    description: str | None = None
    gender: str | None = None
    accent: str | None = None


@manage.patch("/voices/{id}")
async def update(id: str, body: Changes, request: Request, response: Response) -> dict[str, Any]:
    """`voices.update`: name and description stay as they are. The voice's id is made of its name."""
    before = await find(request, id)
    for field, old in (("name", before.name), ("description", description_of(request, before) or "")):
        new = getattr(body, field)
        if new is not None and (plain_name(new) if field == "name" else new) != old:
            raise InvalidArgument(f"`{field}` of a voice stays as it is here; clone the voice once more to change it")
    _warn(response, gender=body.gender, accent=body.accent)
    return _voice(request, before)


@manage.delete("/voices/{id}", status_code=204)
async def delete(id: str, request: Request) -> None:
    """`voices.delete`."""
    await remove(request, id)


def _warn(response: Response, **fields: str | None) -> None:
    """Name the fields among these that are given, but have no effect."""
    for text in warn_of(name for name, value in fields.items() if value):
        response.headers["x-speech-warning"] = text


def _voice(request: Request, each: Listed) -> dict[str, Any]:
    voice, mine = each.voice, is_own(request, each)
    private = voice is not None and voice.owner is not None and not voice.shared
    created = datetime.fromtimestamp((voice and voice.created_at) or 0, timezone.utc)
    return {
        "id": each.id,
        "name": each.name,
        "description": description_of(request, each) or "",
        "tagline": "",
        "language": None,  # any
        "locales": [],
        "access": "private" if private else "public",
        "visibility": "owner" if private else "all",
        "is_owner": mine,
        "is_public": not private,
        "user_id": (request.state.key.name or "") if mine else "",
        "created_at": created.isoformat(),
        "accent": None,
        "gender": None,
        "country": None,
        "preview_file_url": None,
    }
