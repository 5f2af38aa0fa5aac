"""A voice in the answers of /v1/audio/voices, and their other bodies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from voice_clone_client import Voice
from voice_clone_client.errors import plain

from ..voices.ids import OPENAI_PREFIX, voice_id

CacheStatus = Literal["pending", "processing", "ready", "failed", "unsupported"]


class ClipWarning(BaseModel):
    """What is wrong with the clip of a voice."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    code: str
    """For programs, such as `noise`."""
    message: str
    """A sentence: what was measured, and what would be good."""


class RegisteredVoice(BaseModel):
    """A voice in the answer to an upload, with what is known of the clip. Fields without a value are absent, here and
    below.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)
    name: str
    id: str
    """It stands for the name, where an API has ids."""
    consent: str | None = None
    created_at: int
    mime_type: str | None = None
    file_size: int | None = None
    reference_text: str | None = None
    ref_text: str | None = None
    """The same, under the name of vLLM-Omni."""
    speaker_description: str | None = None
    design: str | None = None
    """The words that described a designed voice."""
    design_model: str | None = None
    """The model that spoke its clip."""
    design_seed: int | None = None
    owner: str | None = None
    """The name of the key that owns it."""
    shared: bool | None = None
    """True: other keys that own voices may use it, too."""
    warnings: list[ClipWarning]
    """Empty for a good clip and for an embedding."""
    report: dict[str, float] | None = None
    """Measurements of the clip, and what was cut off it: in seconds, dB and syllables a second."""


class ListedVoice(RegisteredVoice):
    """A voice in the list. Only keys with the scope `manage` see consent, transcript and description."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    embedding_source: str | None = None
    embedding_dim: int | None = None
    cache_status: CacheStatus
    """Whether it is prepared for any model. `unsupported`: it lacks what every model needs."""
    cache_reason: str | None = None
    """Why the preparation failed or must be repeated, or what the models need."""
    artifacts: list[dict[str, Any]]
    """The same for each model and mode: `model_type`, `mode`, `state`, and `reason`, `fingerprint`, `extraction_ms`,
    `generated_at`: when they were computed, in seconds since 1970, and `cosines`, where several recordings were
    averaged: of each to the mean of the others, by its number.
    """
    takes: list[dict[str, Any]] | None = None
    """The other recordings, where several were uploaded: `number` of the file, `file_size`, `duration`,
    `speech_seconds`. The clip is the best of them."""
    styles: dict[str, ListedVoice] | None = None
    """Further clips of the voice by the names of their styles, each with what is known of it; `id` is the voice's."""


class DescribedVoice(ListedVoice):
    """All fields of a voice, or of a style of it."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    generation: int | None = None
    digest: str | None = None
    """Stands for this clip in the manifests of its speeches."""
    duration: float | None = None
    sample_rate: int | None = None
    styles: dict[str, DescribedVoice] | None = None  # type: ignore[assignment]  # each with all fields, too
    """Further clips of the voice by the names of their styles, each with all fields; `id` is the voice's."""


class VoiceName(BaseModel):
    """A voice in the form that Open WebUI reads."""

    id: str
    name: str


class PresetVoice(BaseModel):
    """A preset voice of a model. It is spoken by its name, and is never deleted."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    name: str
    model: str
    """The only model that has it."""
    registered: bool
    """Whether a registered voice of that name speaks in its place."""


class VoiceList(BaseModel):
    """The voices, or a part of them."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    voices: list[str] | list[VoiceName]
    """Their names; as objects if the gateway's --voice-list says so. Those of presets follow on the first page."""
    uploaded_voices: list[ListedVoice]
    preset_voices: list[PresetVoice]
    """The preset voices of models; on the first page only."""
    has_more: bool
    """Whether there are voices behind these: ask again, with the last name as `after`."""
    default_voice: str | None = None
    """The voice of a speech that names none."""
    voice_aliases: dict[str, str]
    """Further names, each with its voice."""


class Uploaded(BaseModel):
    """A voice as the OpenAI API has it, and all of it as `voice`."""

    success: Literal[True] = True
    voice: RegisteredVoice
    id: str
    object: Literal["audio.voice"] = "audio.voice"
    name: str
    created_at: int
    type: Literal["audio_sample", "prompt"]
    prompt: str | None = None


class Cached(BaseModel):
    voice: str
    cache_status: Literal["ready"] = "ready"
    message: str | None = None


class Deleted(BaseModel):
    success: Literal[True] = True
    id: str
    object: Literal["audio.voice.deleted"] = "audio.voice.deleted"
    deleted: Literal[True] = True
    message: str


class DeletedStyle(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)
    success: Literal[True] = True
    id: str
    """Of the voice, which stays."""
    object: Literal["audio.voice.style.deleted"] = "audio.voice.style.deleted"
    style: str
    deleted: Literal[True] = True
    message: str


class Imported(BaseModel):
    success: Literal[True] = True
    voices: list[str]


def uploaded(voice: Voice, style: str | None = None) -> Uploaded:
    """The answer to an upload of a voice, or of a clip as a style of it: what is known of that clip."""
    clip = voice.clip(style) or voice
    fields = RegisteredVoice.model_validate(fields_of(replace(clip, owner=voice.owner, shared=voice.shared)))
    kind: Literal["audio_sample", "prompt"] = "audio_sample" if clip.design is None else "prompt"
    about = fields.model_dump(include={"id", "name", "created_at"})
    return Uploaded(voice=fields, type=kind, prompt=clip.design, **about)


def _status(voice: Voice) -> tuple[CacheStatus, str | None]:
    """The state of the voice for the model that is furthest, and its reasons."""
    states = {artifacts.state for artifacts in voice.artifacts}
    status: CacheStatus = next((state for state in _BEST_FIRST if state in states), "pending")
    reasons = [plain(each.reason) for each in voice.artifacts if each.state == status and each.reason]
    return status, "; ".join(reasons) or None


_BEST_FIRST: tuple[CacheStatus, ...] = ("ready", "processing", "failed", "pending", "unsupported")


def fields_of(voice: Voice) -> dict[str, Any]:
    """The fields of these models for a voice."""
    status, reason = _status(voice)
    id_ = OPENAI_PREFIX + voice_id(voice.owner, voice.name)
    return {
        "id": id_,
        **{name: value for name, value in vars(voice).items() if name not in ("artifacts", "record", "styles")},
        "styles": {style: {**fields_of(clip), "id": id_} for style, clip in voice.styles.items()} or None,
        "takes": [vars(take) for take in voice.takes] or None,
        "warnings": [{"code": warning.code, "message": plain(warning.message)} for warning in voice.warnings],
        "created_at": int(voice.created_at or 0),
        "reference_text": voice.reference_text,
        "ref_text": voice.reference_text,
        "speaker_description": voice.description,
        "shared": voice.shared or None,
        "cache_status": status,
        "cache_reason": reason,
        "artifacts": [
            {**each, "reason": plain(each["reason"])} if each.get("reason") else each
            for each in voice.record.get("artifacts", ())
        ],
    }
