"""/v1/audio/voices: register, list, show, prepare and delete voices."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Form, Path, Query, Request, UploadFile
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from voice_clone_client import Voice, VoiceCloneError, VoiceNotFound
from voice_clone_client.errors import renamed
from voice_clone_client.types import name_key

from ..http.audit import recorded
from ..http.auth import guarded
from ..http.connection import while_connected
from ..http.errors import HTTPFailure, documented
from ..http.json_bounds import parse_json
from ..schemas import Embedding
from ..services import services_of
from ..voices.deleting import delete_voice as erased
from ..voices.ids import OPENAI_PREFIX, voice_id, voice_name
from .design import designed
from .voice_answers import (
    Cached,
    Deleted,
    DeletedStyle,
    DescribedVoice,
    ListedVoice,
    PresetVoice,
    Uploaded,
    VoiceList,
    VoiceName,
    fields_of,
    uploaded,
)

router = APIRouter(route_class=guarded("speak"), tags=["voices"])
manage = APIRouter(route_class=guarded("manage", several=("audio_sample",)), tags=["voices"])


async def _name_of(name: Annotated[str, Path(description="A voice by its name or id")], request: Request) -> str:
    return await voice_name(request, name)


Name = Annotated[str, Depends(_name_of)]
MOST = 1000  # voices of an answer
_NOT_DESIGNED = ("audio_sample", "speaker_embedding", "reference_text", "ref_text", "design", "style", "transcribe")
ERRORS = (400, 401, 403, 500, 501, 503, 504)


class UploadForm(BaseModel):
    """The form of an upload."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    name: str
    """1 to 64 letters, digits, spaces and . _ -"""
    consent: str | None = None
    """How the speaker consented. A voice that is designed by `prompt` needs none."""
    audio_sample: list[UploadFile] | None = None
    """A clip of 1 to 30 s: WAV, FLAC, OGG, MP3, m4a, mp4, mov, webm, amr. Either this or speaker_embedding. The field
    may come up to 25 times, with recordings of one speaker: the speaker embedding is their average."""
    speaker_embedding: str | None = None
    """JSON list of the numbers of an embedding."""
    reference_text: str | None = None
    """The words spoken in the sample, of several the first; with them the voice is cloned in context."""
    ref_text: str | None = None
    """Another name of reference_text."""
    transcribe: bool = False
    """Let the server's model `transcriber` write reference_text, which the answer shows."""
    speaker_description: str | None = None
    """Free text."""
    strict: bool = False
    """Refuse a clip that has warnings."""
    trim_silence: bool = False
    """Cut the silence off both ends of the clip."""
    replace: bool = False
    """Replace a voice of that name that differs; otherwise it is an error 409, voice_exists."""
    style: str | None = None
    """Add the clip as this style to a voice that there is; with `replace`, in the place of the older one."""
    shared: bool = False
    """Other keys that own voices may use it, too."""
    design: str | None = None
    """The words that described a designed voice, with design_model and design_seed: its record then says how it was
    made."""
    design_model: str | None = None
    design_seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    type: Literal["audio_sample", "prompt"] | None = None
    """`prompt`: a model designs the voice. By default what the other fields say."""
    prompt: Annotated[str, Field(max_length=1024)] | None = None
    """The voice in words, in place of a clip."""
    model: str | None = None
    """The model that designs it, or `auto`."""
    script_hint: Annotated[str, Field(max_length=1000)] | None = None
    """What it says while it is designed."""

    def check(self) -> None:
        """Check what the fields have to do with each other.

        Raises:
            HTTPFailure: one is missing or does not fit.
        """
        if self.prompt is None:
            if self.type == "prompt":
                raise HTTPFailure(400, "prompt: this field is required", "invalid_argument", param="prompt")
            if self.consent is None:
                raise HTTPFailure(400, "consent: this field is required", "invalid_argument", param="consent")
            if self.transcribe and (not self.audio_sample or self.transcript() is not None):
                message = "transcribe writes the reference_text of the audio_sample; send that, and no text"
                raise HTTPFailure(400, message, "invalid_argument", param="transcribe")
            return
        other = next((name for name in _NOT_DESIGNED if getattr(self, name) not in (None, False)), None)
        if other is not None or self.type == "audio_sample":
            message = f"prompt: a model designs this voice; leave out {other or 'type'}, or leave out prompt"
            if other == "style":
                message = "prompt: a style is a clip of a voice that there is; send audio_sample, or leave out style"
            raise HTTPFailure(400, message, "invalid_argument", param="prompt")

    def transcript(self) -> str | None:
        """The reference text, under either name.

        Raises:
            HTTPFailure: the two differ.
        """
        if None not in (self.reference_text, self.ref_text) and self.reference_text != self.ref_text:
            message = "ref_text is another name of reference_text; give only one"
            raise HTTPFailure(400, message, "invalid_argument", param="ref_text")
        return self.reference_text if self.ref_text is None else self.ref_text


@router.get("/v1/audio/voices", response_model_exclude_none=True, responses=documented(400, 401, 403, 500, 503, 504))
async def list_voices(
    request: Request,
    limit: Annotated[int, Query(description="At most so many voices", ge=1, le=MOST)] = MOST,
    after: Annotated[str | None, Query(description="The voices behind this name")] = None,
) -> VoiceList:
    """The voices, by name; the first page has the preset voices of models, too."""
    presets = await request.state.client.presets()
    aliases = await request.state.client.aliases()
    voices = await request.state.client.list(limit=limit + 1, after=after)
    listed = [ListedVoice.model_validate(fields_of(voice)) for voice in voices[:limit]]
    if "manage" not in request.state.key.scopes:
        listed = [_publicly(voice) for voice in listed]
    services = services_of(request)
    names = sorted(voice.name for voice in listed)
    whole = after is None and len(voices) <= limit
    known = {name_key(name) for name in names}
    brought = dict.fromkeys(preset.name for preset in presets)
    if after is None:
        names += [name for name in brought if name_key(name) not in known]
    known |= {name_key(name) for name in brought}

    async def usable(voice: str) -> str | None:
        """The voice, unless there is none, or the key's owner cannot use it."""
        if not voice or request.state.key.owner is None or name_key(voice) in known:
            return voice or None
        with contextlib.suppress(VoiceNotFound):
            return None if whole else str((await request.state.client.get(voice)).name)
        return None

    return VoiceList(
        voices=names if services.settings.voice_list == "names" else [VoiceName(id=name, name=name) for name in names],
        uploaded_voices=listed,
        preset_voices=[
            PresetVoice(name=preset.name, model=preset.model_type, registered=preset.registered)
            for preset in presets
            if after is None
        ],
        has_more=len(voices) > limit,
        default_voice=await usable(services.voice_names.default),
        voice_aliases={alias: voice for alias, voice in aliases.items() if await usable(voice)},
    )


_PRIVATE = (
    *("consent", "reference_text", "ref_text", "speaker_description", "owner"),
    *("design", "design_model", "design_seed"),
)


def _publicly(voice: ListedVoice) -> ListedVoice:
    """A voice as keys see it that may only speak."""
    styles = {style: _publicly(clip) for style, clip in (voice.styles or {}).items()}
    return voice.model_copy(update={**dict.fromkeys(_PRIVATE), "styles": styles or None})


@manage.post("/v1/audio/voices", response_model_exclude_none=True, responses=documented(*ERRORS, 404, 409, 413, 429))
async def upload_voice(
    request: Request, form: Annotated[UploadForm, Form(media_type="multipart/form-data")]
) -> Uploaded:
    """Register a voice. It can be used at once; its cache is made later."""
    form.check()
    with recorded(request, "upload", form.name) as entry:
        entry |= {} if form.style is None else {"style": form.style}
        if form.prompt is not None:
            made = await while_connected(request.receive, designed(request, form.prompt, form.script_hint, form.model))
            async with services_of(request).after_speech.turn():
                voice = await request.state.client.upload(
                    form.name, consent=form.consent, replace=form.replace, shared=form.shared, **made
                )
            return _registered(request, entry, voice)
        embedding = None if form.speaker_embedding is None else await _embedding(form.speaker_embedding)
        read = services_of(request).clips.readable
        try:
            files = [await each.read() for each in form.audio_sample or ()]
            readable = [await while_connected(request.receive, read(each)) for each in files]
            words = form.transcript()
            if form.transcribe:
                heard = request.state.client.transcribe(readable[0], required=True)
                words = await while_connected(request.receive, heard)
            async with services_of(request).after_speech.turn():
                voice = await request.state.client.upload(
                    form.name,
                    readable or None,
                    reference_text=words,
                    consent=form.consent,
                    description=form.speaker_description,
                    speaker_embedding=embedding,
                    strict=form.strict,
                    trim_silence=form.trim_silence,
                    replace=form.replace,
                    style=form.style,
                    shared=form.shared,
                    design=form.design,
                    design_model=form.design_model,
                    design_seed=form.design_seed,
                )
        except VoiceCloneError as error:
            raise renamed(error, {"audio": "audio_sample", "description": "speaker_description"}) from None
        return _registered(request, entry, voice, form.style)


def _registered(request: Request, entry: dict[str, Any], voice: Voice, style: str | None = None) -> Uploaded:
    entry["generation"] = voice.generation
    services_of(request).loudness.expect(services_of(request), request.state.client, voice.name)
    return uploaded(voice, style)


async def _embedding(text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    values = await parse_json(text.encode("utf-8", "replace"), "speaker_embedding")
    try:
        return np.array(TypeAdapter(Embedding).validate_python(values, strict=True), np.float32)
    except ValidationError:
        message = "speaker_embedding must be a JSON list of finite numbers"
        raise HTTPFailure(400, message, "invalid_argument", param="speaker_embedding") from None


@manage.get("/v1/audio/voices/{name}", response_model_exclude_none=True, responses=documented(*ERRORS, 404))
async def get_voice(name: Name, request: Request) -> DescribedVoice:
    """All fields of a voice."""
    return DescribedVoice.model_validate(fields_of(await request.state.client.get(name)))


@manage.delete("/v1/audio/voices/{name}", responses=documented(*ERRORS, 404))
async def delete_voice(name: Name, request: Request) -> Deleted:
    """Delete a voice and everything computed from it."""
    voice = await erased(request, name)
    owner = request.state.client.owner if voice is None else voice.owner
    return Deleted(id=OPENAI_PREFIX + voice_id(owner, name), message=f"Voice {name!r} deleted successfully")


@manage.delete("/v1/audio/voices/{name}/styles/{style}", responses=documented(*ERRORS, 404))
async def delete_style(name: Name, style: str, request: Request) -> DeletedStyle:
    """Delete the clip of a style; the voice and its other clips stay."""
    voice = await erased(request, name, style)
    owner = request.state.client.owner if voice is None else voice.owner
    message = f"Style {style!r} of voice {name!r} deleted successfully"
    return DeletedStyle(id=OPENAI_PREFIX + voice_id(owner, name), style=style, message=message)


@manage.post("/v1/audio/voices/{name}/cache", response_model_exclude_none=True, responses=documented(*ERRORS, 404, 429))
async def cache_voice(
    name: Name,
    request: Request,
    force: Annotated[bool, Query(description="Compute it again")] = False,
    style: Annotated[str | None, Query(description="Of the clip; by default the first one")] = None,
) -> Cached:
    """Prepare a voice and wait until it is ready. Does nothing if it is ready."""

    async def prepared() -> Voice:
        async with services_of(request).after_speech.turn():
            voice: Voice = await request.state.client.prepare(name, force, style=style)
            return voice

    voice = await while_connected(request.receive, prepared())
    ready = voice.record.get("message") is not None
    return Cached(voice=voice.name, message="Cache already exists and is valid" if ready else None)
