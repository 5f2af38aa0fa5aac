"""GET /v1/models and GET /health."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from .auth import guarded
from .http_errors import HTTPFailure, documented

router = APIRouter(route_class=guarded("speak"), tags=["models"])
health_router = APIRouter(tags=["operation"])


class Model(BaseModel):
    """A model, as the OpenAI API shows it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "voice-clone"


class Models(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[Model]


class Health(BaseModel):
    """That the speech server is ready."""

    status: Literal["ready"] = "ready"


_PATIENCE = 5.0  # seconds in which a server that is ready says so
_STARTED = int(time.time())


def _names(request: Request) -> tuple[str, ...]:
    settings = request.app.state.settings
    return (settings.model, *settings.model_aliases)


@router.get("/v1/models", responses=documented(401, 403, 500))
async def list_models(request: Request) -> Models:
    """The models that can be asked for."""
    return Models(data=[Model(id=name, created=_STARTED) for name in _names(request)])


@router.get("/v1/models/{model}", responses=documented(400, 401, 403, 404, 500))
async def get_model(model: str, request: Request) -> Model:
    """One model."""
    if model not in _names(request):
        raise HTTPFailure(404, f"there is no model {model!r}; /v1/models lists all", "model_not_found", param="model")
    return Model(id=model, created=_STARTED)


@health_router.get("/health", responses=documented(503))
async def health(request: Request) -> Health:
    """Whether the speech server is ready to speak."""
    try:
        ready = await asyncio.wait_for(request.app.state.client.ready(), _PATIENCE)
    except asyncio.TimeoutError:
        ready = False
    if not ready:
        headers = {"Retry-After": str(request.app.state.settings.retry_after)}
        message = "the speech server is not ready; try again later"
        raise HTTPFailure(503, message, "server_unavailable", "server_error", headers=headers)
    return Health()
