"""What their clients ask beside speech and voices: models, the user, empty lists, and what is not here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request
from voice_clone_text.languages import LANGUAGES

from ...services import services_of
from ..vendor import adapter, refuse, shared
from .speech_schemas import CLIENT_HEADER

REFUSED = {
    "/v1/sound-generation": "makes sounds, which no model here does",
    "/v1/speech-to-speech": "changes the voice of a recording, which no model here does",
    "/v1/text-to-voice": "designs voices; POST /v1/audio/voices/design does it here",
    "/v1/shared-voices": "is their library of voices; register voices of your own with POST /v1/voices/add",
}
"""How the paths begin of what is not here, and why."""
_UNLIMITED = 1_000_000_000

router = adapter()
models = shared(lambda headers: CLIENT_HEADER in headers)


@models.get("/v1/models")
async def list_models(request: Request) -> list[dict[str, Any]]:
    """`models.list`: the families of the server."""
    services = services_of(request)
    most, families = services.settings.max_input_characters, services.families
    found = await families.names()
    spoken = {name: (await families.get(root)).languages for name, root in found.items()}
    return [
        {
            "model_id": name,
            "name": name,
            "description": f"The model family {name} of this server",
            "can_be_finetuned": False,
            "can_do_text_to_speech": True,
            "can_do_voice_conversion": False,
            "can_use_style": False,
            "can_use_speaker_boost": False,
            "serves_pro_voices": False,
            "token_cost_factor": 1.0,
            "requires_alpha_access": False,
            "max_characters_request_free_user": most,
            "max_characters_request_subscribed_user": most,
            "maximum_text_length_per_request": most,
            "languages": _languages(spoken[name]),
            "model_rates": {"character_cost_multiplier": 1.0},
            "concurrency_group": "standard",
        }
        for name in found
    ]


def _languages(names: Sequence[str]) -> list[dict[str, str]]:
    """Those of a family; where it does not say which, the usual ones."""
    codes = {name.casefold(): code for code, name in LANGUAGES.items()}
    chosen = [name for name in names if name.casefold() != "auto"] or [*LANGUAGES.values()]
    return [{"language_id": codes.get(name.casefold(), name), "name": name.capitalize()} for name in chosen]


@router.get("/v1/user/subscription")
async def subscription(request: Request) -> dict[str, Any]:
    """`user.subscription.get`: nothing is counted here, and nothing is billed."""
    voices = len(await request.state.client.list(limit=1000))
    return {
        "tier": "self-hosted",
        "status": "active",
        "currency": "usd",
        "billing_period": None,
        "character_count": 0,
        "character_limit": _UNLIMITED,
        "max_character_limit_extension": None,
        "max_credit_limit_extension": "unlimited",
        "can_extend_character_limit": False,
        "allowed_to_extend_character_limit": False,
        "next_character_count_reset_unix": None,
        "voice_slots_used": voices,
        "professional_voice_slots_used": 0,
        "professional_voice_slots_used_in_workspace": 0,
        "voice_limit": request.state.key.voices or _UNLIMITED,
        "max_voice_add_edits": None,
        "voice_add_edit_counter": 0,
        "professional_voice_limit": 0,
        "can_extend_voice_limit": False,
        "can_use_instant_voice_cloning": "manage" in request.state.key.scopes,
        "can_use_professional_voice_cloning": False,
        "current_overage": {"amount": "0", "currency": "usd"},
        "open_invoices": [],
        "has_open_invoices": False,
    }


@router.get("/v1/user")
async def user(request: Request) -> dict[str, Any]:
    """`user.get`."""
    name = request.state.key.name or "anyone"
    return {
        "user_id": name,
        "workspace_id": name,
        "first_name": name,
        "subscription": await subscription(request),
        "is_new_user": False,
        "can_use_delayed_payment_methods": False,
        "is_onboarding_completed": True,
        "is_onboarding_checklist_completed": True,
        "created_at": 0,
        "seat_type": "workspace_admin",
    }


@router.get("/v1/history")
async def history() -> dict[str, Any]:
    """`history.list`: no speech is kept here."""
    return {"history": [], "last_history_item_id": None, "has_more": False}


@router.get("/v1/shared-voices")
async def shared_voices() -> dict[str, Any]:
    """`voices.get_shared`."""
    return {"voices": [], "has_more": False, "total_count": 0}


for _path, _why in REFUSED.items():
    refuse(router, _path, _why)
