"""Their voices: those of the server, by ids. A voice that is added needs the consent that `registering` describes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import File, Form, Query, Request, UploadFile
from voice_clone_client import InvalidArgument, Voice

from ...http.errors import HTTPFailure
from ...voices.ids import voice_name
from ..listing import Listed, description_of, find, is_own, listed, page, registered
from ..registering import plain_name, register, remove
from ..vendor import adapter

router = adapter()
manage = adapter("manage", several=("files",))
SETTINGS = {"stability": 0.5, "similarity_boost": 0.75, "style": 0.0, "use_speaker_boost": True, "speed": 1.0}
"""What a voice's settings are: of these, only the speed has an effect, in the request of a speech."""
MOST = 100  # voices of a page


@router.get("/v1/voices")
async def get_all(request: Request) -> dict[str, Any]:
    """`voices.get_all`."""
    return {"voices": [_voice(request, each) for each in await listed(request)]}


@router.get("/v2/voices")
async def search(
    request: Request,
    page_size: Annotated[int, Query(ge=1, le=MOST)] = 10,
    search: str = "",
    next_page_token: str | None = None,
    voice_type: str = "",
    category: str = "",
    voice_ids: Annotated[list[str] | None, Query()] = None,
) -> dict[str, Any]:
    """`voices.search`."""
    found = (await get_all(request))["voices"]
    if search:
        found = [each for each in found if search.casefold() in f"{each['name']}\n{each['description']}".casefold()]
    if category or voice_type == "default":
        found = [each for each in found if each["category"] == (category or "premade")]
    if voice_ids:
        found = [each for each in found if each["voice_id"] in voice_ids]
    voices, more = page(found, lambda each: str(each["voice_id"]), page_size, next_page_token)
    token = voices[-1]["voice_id"] if more else None
    return {"voices": voices, "has_more": more, "total_count": len(found), "next_page_token": token}


@router.get("/v1/voices/settings/default")
async def default_settings() -> dict[str, Any]:
    """`voices.settings.get_default`."""
    return SETTINGS


@router.get("/v1/voices/{voice_id}/settings")
async def settings(voice_id: str, request: Request) -> dict[str, Any]:
    """`voices.settings.get`."""
    await get(voice_id, request)
    return SETTINGS


@router.get("/v1/voices/{voice_id}")
async def get(voice_id: str, request: Request) -> dict[str, Any]:
    """`voices.get`."""
    return _voice(request, await find(request, voice_id))


@manage.post("/v1/voices/{voice_id}/settings/edit")
async def edit_settings(voice_id: str, request: Request) -> dict[str, Any]:
    """`voices.settings.update`: they are those of each request here."""
    await get(voice_id, request)
    raise HTTPFailure(400, "a voice has no settings of its own here; send voice_settings with the text", "unsupported")


@manage.post("/v1/voices/add")
async def add(
    request: Request,
    name: Annotated[str, Form(min_length=1)],
    files: Annotated[list[UploadFile], File()] = [],  # noqa: B006 # FastAPI copies it
    description: Annotated[str | None, Form()] = None,
    reference_text: Annotated[str | None, Form()] = None,
    consent: Annotated[str | None, Form()] = None,
) -> dict[str, Any]:
    """`voices.ivc.create`."""
    clips = [await file.read() for file in files]
    voice = await register(request, name, clips, consent, description=description, reference_text=reference_text)
    return {"voice_id": registered(request, voice).id, "requires_verification": False}


@manage.post("/v1/voices/{voice_id}/edit")
async def edit(
    voice_id: str,
    request: Request,
    name: Annotated[str | None, Form()] = None,
    files: Annotated[list[UploadFile], File()] = [],  # noqa: B006
    description: Annotated[str | None, Form()] = None,
    consent: Annotated[str | None, Form()] = None,
) -> dict[str, Any]:
    """`voices.update`: other clips and, with them, another description. The name stays: the id is made of it."""
    before: Voice = await request.state.client.get(await voice_name(request, voice_id))
    if name and plain_name(name) != before.name:
        raise InvalidArgument(
            f"`name` of a voice stays as it is here: {before.name!r}; add a voice with the other name"
        )
    if not files:
        raise InvalidArgument("`files` must be the new clips of the voice; all else stays as it is")
    clips, text = [await file.read() for file in files], before.description if description is None else description
    said = consent or before.consent
    await register(request, before.name, clips, said, description=text, replace=True, shared=before.shared)
    return {"status": "ok"}


@manage.delete("/v1/voices/{voice_id}")
async def delete(voice_id: str, request: Request) -> dict[str, Literal["ok"]]:
    """`voices.delete`."""
    await remove(request, voice_id)
    return {"status": "ok"}


def _voice(request: Request, each: Listed) -> dict[str, Any]:
    voice = each.voice
    return {
        "voice_id": each.id,
        "name": each.name,
        "category": "premade" if voice is None else "generated" if voice.design else "cloned",
        "samples": [],
        "labels": {} if each.model is None else {"model": each.model},
        "description": description_of(request, each),
        "preview_url": None,
        "available_for_tiers": [],
        "settings": SETTINGS,
        "high_quality_base_model_ids": [],
        "verified_languages": [],
        "is_owner": is_own(request, each),
        "is_legacy": False,
        "is_mixed": False,
        "created_at_unix": int((voice and voice.created_at) or 0),
    }
