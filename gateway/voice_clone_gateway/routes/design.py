"""POST /v1/audio/voices/design: candidates of a voice that a model makes of a description, each to hear and to keep."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from voice_clone_client import Incomplete
from voice_clone_client.callers import on_behalf_of
from voice_clone_client.designs import check_description, instructions_option, seeds_of

from ..http.auth import guarded
from ..http.connection import while_connected
from ..http.errors import ErrorDetail, documented, failure
from ..schemas import Name, SpeechRequest, Strict
from ..services import services_of
from ..speech.whole import speak_whole
from .batch import AudioList

router = APIRouter(route_class=guarded("speak"), tags=["voices"])
MOST = 8  # candidates of a request
SCRIPT = "The sun was low when we came to the river, and it was almost time to go home."
"""What a voice says while it is designed, if the caller does not say."""


class DesignRequest(Strict):
    """The body of POST /v1/audio/voices/design."""

    description: Annotated[str, Field(min_length=1, max_length=1024)]
    """The voice, in words."""
    input: Annotated[str, Field(min_length=1, max_length=1000)]
    """What the candidates say: a sentence or two. The chosen one is the clip of the voice, and this its transcript."""
    model: Name | None = None
    """One of /v1/models that is voiceless and follows instructions; by default one that was made for it."""
    language: Name | None = None
    """A language of the model by its name or code, or `Auto`."""
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**64)]], Field(min_length=1, max_length=MOST)] | None = None
    """One for each candidate; by default three new ones."""
    max_frames: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Maximum length of a candidate, in frames of the model."""
    options: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    """Parameters that only this model has."""


class DesignCandidate(BaseModel):
    """A candidate, or why there is none."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    seed: int
    audio_data: str | None = None
    """A WAV file in base64. To keep the voice, send it as `audio_sample` of POST /v1/audio/voices, with `input` as
    `reference_text`, and `design`, `design_model` and `design_seed`."""
    error: ErrorDetail | None = None


class Designs(BaseModel):
    """The candidates, in the order of their seeds."""

    model: str
    description: str
    input: str
    candidates: list[DesignCandidate]


@router.post(
    "/v1/audio/voices/design",
    response_model=Designs,
    responses=documented(400, 401, 403, 404, 413, 429, 500, 501, 503, 504),
)
async def design_voice(payload: DesignRequest, request: Request) -> Response:
    """Let a model make voices of a description, and speak a text in each. Nothing is registered."""
    services, key, request_id = services_of(request), request.state.key, request.state.request_id
    families = services.families
    check_description(payload.description)
    model = await families.designer() if payload.model is None else await families.choose(payload.model)
    instructions_option(model, await families.get(model))
    seeds = seeds_of(3 if payload.seeds is None else payload.seeds)
    fields = payload.model_dump(include={"input", "language", "max_frames", "options"}, exclude_unset=True)
    fields |= {"model": model, "instructions": payload.description, "response_format": "wav"}

    async def one(seed: int, places: asyncio.Semaphore) -> tuple[DesignCandidate, bytes | None]:
        async with places:
            speech = SpeechRequest.model_validate({**fields, "seed": seed})
            try:
                spoken = await speak_whole(services, key, request_id, speech, request.state.held, in_one=True)
            except Incomplete as error:  # another seed may do better; all else concerns each of them
                return DesignCandidate(seed=seed, error=ErrorDetail(**failure(error, request_id).body()["error"])), None
        return DesignCandidate(seed=seed, audio_data=""), spoken.audio

    with key.gate.pass_through(len(seeds)) as parallel, services.gate.pass_through():
        places = asyncio.Semaphore(parallel)
        with on_behalf_of(urgency="batch"):
            work = [asyncio.ensure_future(one(seed, places)) for seed in seeds]
        try:
            candidates = await while_connected(request.receive, asyncio.gather(*work))
        finally:
            for task in work:  # one has failed, or the client has left
                task.cancel()
    answer = Designs(model=model, description=payload.description, input=payload.input, candidates=[])
    return AudioList(answer, "candidates", candidates)


async def designed(request: Request, description: str, text: str | None, model: str | None) -> dict[str, Any]:
    """What is uploaded of a voice that a model makes of a description: arguments of `AsyncClient.upload`.

    Args:
        text: what it says; None for a sentence of ours.
        model: that makes it; None, or a name that OpenAI has for its own, for one that can.

    Raises:
        Exception: as `design_voice`.
    """
    services, key = services_of(request), request.state.key
    check_description(description)
    families = services.families
    own = model is None or model == "auto" or model[:2] == "20"  # OpenAI's models of voices have dates
    chosen = await families.designer() if own else await families.choose(model)
    instructions_option(chosen, await families.get(chosen))
    [seed] = seeds_of(1)
    said = text or SCRIPT
    speech = SpeechRequest(input=said, model=chosen, instructions=description, response_format="wav", seed=seed)
    with key.gate.pass_through(), services.gate.pass_through(), on_behalf_of(urgency="batch"):
        spoken = await speak_whole(services, key, request.state.request_id, speech, request.state.held, in_one=True)
    design = {"design": description, "design_model": chosen, "design_seed": seed}
    return {"audio": spoken.audio, "reference_text": said, **design}
