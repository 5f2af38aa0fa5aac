"""GET /v1/models and GET /health."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from voice_clone_client import VoiceCloneError

from ..families import unknown_model
from ..http.auth import guarded
from ..http.errors import HTTPFailure, documented
from ..jobs.schemas import JobsState
from ..services import services_of

router = APIRouter(route_class=guarded("speak", needs_server=False), tags=["models"])
health_router = APIRouter(tags=["operation"])


class Model(BaseModel):
    """A model, in the form of the OpenAI API."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "voice-clone"
    root: str
    """The model family; differs from `id` if that is an alias."""
    instructions: bool
    """Whether it follows instructions on how to speak."""
    voiceless: bool
    """Whether it can speak without a voice."""
    options: dict[str, str]
    """What it takes in `options`: what each means, and what it may be."""
    instructions_option: str | None
    """The one that `instructions` fill."""
    languages: list[str]
    """Those that `language` may name; empty: none, or the checkpoint decides."""


class Models(BaseModel):
    """All models. The first is the default."""

    object: Literal["list"] = "list"
    data: list[Model]


class Health(BaseModel):
    """The speech server is ready, or it was ended while it was idle, and starts again with the next request for it."""

    status: Literal["ready", "idle"] = "ready"
    jobs: JobsState | None = None
    """Of a gateway that takes jobs; speech does without them."""


_PATIENCE = 2.0  # seconds within which a ready server answers; one of its models may stand still
_STARTED = int(time.time())


async def _models(request: Request) -> dict[str, Model]:
    families, found = services_of(request).families, {}
    for name, root in (await families.names()).items():
        family = await families.get(root)
        found[name] = Model(
            id=name,
            created=_STARTED,
            root=root,
            instructions=family.instructions_option is not None,
            voiceless=family.voiceless,
            options=dict(family.options),
            instructions_option=family.instructions_option,
            languages=list(family.languages),
        )
    return found


@router.get("/v1/models", responses=documented(401, 403, 500, 501, 503, 504))
async def list_models(request: Request) -> Models:
    """All models: the families of the speech server, and their aliases."""
    return Models(data=list((await _models(request)).values()))


@router.get("/v1/models/{model}", responses=documented(400, 401, 403, 404, 500, 501, 503, 504))
async def get_model(model: str, request: Request) -> Model:
    """One model."""
    models = await _models(request)
    if model not in models:
        raise unknown_model(model, models)
    return models[model]


@health_router.get("/health", response_model_exclude_none=True, responses=documented(503))
async def health(request: Request) -> Health:
    """Whether the speech server is ready to speak with the default model, or idle. This does not start it."""
    services = services_of(request)
    jobs = None if services.jobs is None else services.jobs.state
    if services.idle_server.idle:
        return Health(status="idle", jobs=jobs)

    async def ask() -> bool:
        return bool(await services.client.ready(model=await services.families.choose(None)))

    try:
        ready = await asyncio.wait_for(ask(), _PATIENCE)
    except (asyncio.TimeoutError, VoiceCloneError):
        ready = False
    if not ready:
        headers = {"Retry-After": str(services_of(request).settings.retry_after)}
        message = "the speech server is not ready; try again later"
        raise HTTPFailure(503, message, "server_unavailable", "server_error", headers=headers)
    return Health(jobs=jobs)
