"""Requests and replies of the operations, their checks, and the limits of the cache.

A speaker is shown as a dictionary (`get`): name, generation, created_at, embedding_source; where they exist
consent, description, reference_text, mime_type, file_size, duration, sample_rate, embedding_dim, report (see
`ClipReport`), warnings [{code, message}], owner, shared; and artifacts [{model_type, mode, state, reason?,
extraction_ms?, fingerprint?}]. The state is `pending`, `processing`, `ready`, `failed`, or `unsupported`: it lacks what
the family needs.

The option `owner` of any operation says for whom the caller acts. Speakers of others are not there then, except
that `get`, `list` and `resolve` find those that are shared. Without it the caller is the operator.

    upload   name, audio or speaker_embedding, reference_text?, consent?, description?, model_type?; options
             wait (for artifacts), timeout, policy (`immutable` refuses to replace), shared, max_owned (how many
             the owner may have); with audio trim_silence (at its ends), strict (refuses a clip with warnings). The
             speaker.
    get      name. The speaker.
    list     options limit, after. {"speakers": [speaker, ...], "count": n}, by name; the first `limit` behind the name
             `after`.
    presets  no input but the option timeout. {"presets": [{"name", "model_type", "registered"}, ...]}: the voices that
             the checkpoints of the families bring, which can be spoken and neither changed nor deleted; `registered`:
             whether a speaker of that name, which this owner may use, is spoken in its place. A family whose encoder
             does not say in time (5 s) what its checkpoint brings is left out.
    delete   name. {"name", "generation", "deleted": true}
    prepare  name, model_type?; options mode, force, timeout. The speaker, with "status": "ready", "mode",
             "extraction_ms", and "message": "already prepared" if there was nothing to do.
    resolve  one of name, audio, speaker_embedding, voice_prompt; model_type?; reference_text? with audio; options mode,
             cache, timeout. The artifacts, and {"status": "hit" | "restored" | "miss" | "none", "model_type", "mode",
             "generation", "embedding_source", "extraction_ms", "fingerprint", "origin", "name"?,
             "reference_text"?}. What is computed of the artifacts is filed under `origin`, and dropped by it.
    stats    counters, sizes of the pools, histogram of extraction seconds; "model_types", the default first; "kept":
             {model: {"entries", "bytes", "voices"} that it keeps of voices, or null if it did not answer}.
    export   name?; options include_audio. {"speakers": [name, ...]}, and the bundle as artifacts.
    import   audio: a bundle; options reextract, policy, max_owned. {"speakers": [speaker, ...], "count": n}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from voice_clone.audio import ClipLimits
from voice_clone.errors import InvalidArgument
from voice_clone.speakers.name import check_word


@dataclass(frozen=True, eq=False)
class Request:
    """The inputs of one operation; None (or no entry) where not given. Operations never change a request.

    Attributes:
        name: of a speaker.
        model_type: a family with a `<model_type>_voice_encoder`.
        audio: an encoded clip or its data URL; for `import` a bundle.
        speaker_embedding: a ready speaker embedding, float32 [dimension].
        voice_prompt: a bundle of one speaker, whose artifacts serve as they are.
        options: see above; an unknown option is an error.
    """

    name: str | None = None
    model_type: str | None = None
    audio: bytes | None = None
    reference_text: str | None = None
    consent: str | None = None
    description: str | None = None
    speaker_embedding: NDArray[Any] | None = None
    voice_prompt: bytes | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def owner(self) -> str | None:
        """For whom the caller acts: the option `owner`, which every operation takes; None: the operator."""
        return self.options.get("owner")


@dataclass(frozen=True)
class Reply:
    """The answer of an operation: `result` fit for JSON, and for some operations `artifacts` (safetensors bytes)."""

    result: dict[str, Any]
    artifacts: bytes | None = None


@dataclass(frozen=True)
class CacheConfig:
    """Limits of the cache.

    Attributes:
        max_bytes, max_entries: of the artifacts in memory, both pools together; 0 disables the memory.
        inline_share: the part of both that inline clips may use; registered speakers may use all of it.
        max_speakers: the limit of registered speakers.
        clip: limits of a reference clip.
        max_bundle_bytes: the largest bundle exported or imported.
        policy: whether an upload may replace a registered speaker.
        require_consent: whether a speaker without consent is refused.
        extraction_timeout: seconds that one extraction may take.
        workers: the number of extractions at once.
        max_waiting_bytes: samples of uploaded clips that may wait in memory for their extraction.
        finish_seconds: between two looks for voices whose artifacts could not be made or saved when they came.
    """

    max_bytes: int = 512 << 20
    max_entries: int = 1024
    inline_share: float = 0.25
    max_speakers: int = 1000
    clip: ClipLimits = field(default_factory=ClipLimits)
    max_bundle_bytes: int = 512 << 20
    policy: Literal["replace", "immutable"] = "replace"
    require_consent: bool = False
    extraction_timeout: float = 60.0
    workers: int = 4
    max_waiting_bytes: int = 64 << 20
    finish_seconds: float = 30.0


_OPTIONS: dict[str, type] = {
    "wait": bool,
    "force": bool,
    "cache": bool,
    "reextract": bool,
    "strict": bool,
    "trim_silence": bool,
    "include_audio": bool,
    "mode": str,
    "policy": str,
    "timeout": float,
    "owner": str,
    "shared": bool,
    "max_owned": int,
    "limit": int,
    "after": str,
}


def check_options(options: Mapping[str, Any], *allowed: str) -> None:
    """Check that every option is one of `allowed` and of its type.

    Raises:
        InvalidArgument: names the option, and what would be right.
    """
    for name, value in options.items():
        if name not in (*allowed, "owner"):
            raise InvalidArgument(f"unknown option {name!r}; this operation takes {', '.join((*allowed, 'owner'))}")
        kind = _OPTIONS[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if kind is float:
            if not number or not 0.0 < value < math.inf:
                raise InvalidArgument(f"the option {name} must be a number of seconds > 0")
        elif kind is int:
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise InvalidArgument(f"the option {name} must be a whole number >= 0")
        elif not isinstance(value, kind):
            raise InvalidArgument(f"the option {name} must be {'true or false' if kind is bool else 'text'}")
        elif name == "owner":
            check_word("the option owner", str(value))


def check_absent(request: Request, *fields: str) -> None:
    """Check that none of these fields is given: an operation refuses a field that it would ignore.

    Raises:
        InvalidArgument: names the field.
    """
    for name in fields:
        if getattr(request, name) is not None:
            raise InvalidArgument(f"{name} has no meaning in this operation; leave it out")


def check_text(field_name: str, text: str | None, most: int) -> str | None:
    """A text as it is stored: not blank, at most `most` characters, without NUL.

    Raises:
        InvalidArgument: the text is otherwise.
    """
    if text is None:
        return None
    if not text.strip():
        raise InvalidArgument(f"{field_name} is blank; give some text or leave it out")
    if len(text) > most:
        raise InvalidArgument(f"{field_name} has {len(text)} characters; at most {most} are allowed")
    if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
        raise InvalidArgument(f"{field_name} holds characters that are no text (NUL or a lone surrogate)")
    return text


def check_embedding(embedding: NDArray[Any]) -> NDArray[np.float32]:
    """A ready speaker embedding as float32 [dimension].

    Raises:
        InvalidArgument: not one-dimensional, empty, or not finite.
    """
    if embedding.ndim != 1 or not embedding.size or embedding.dtype.kind not in "fiu":
        raise InvalidArgument(f"speaker_embedding must be numbers of shape [dimension], not {list(embedding.shape)}")
    with np.errstate(over="ignore"):
        values = embedding.astype(np.float32)
    if not np.isfinite(values).all():
        raise InvalidArgument("speaker_embedding holds NaN or infinity; every value must be finite")
    return values


def required_name(request: Request) -> str:
    """The name in a request.

    Raises:
        InvalidArgument: there is none.
    """
    if request.name is None:
        raise InvalidArgument("name is missing; give the name of a voice")
    return request.name


def asked_mode(request: Request) -> str | None:
    """The mode that a request names; None if it names none.

    Raises:
        InvalidArgument: it is not a word.
    """
    mode = request.options.get("mode")
    return None if mode is None else check_word("the option mode", mode)


def is_immutable(request: Request) -> bool:
    """Whether an upload or an import refuses to replace.

    Raises:
        InvalidArgument: its policy is neither `replace` nor `immutable`.
    """
    policy = request.options.get("policy", "replace")
    if policy not in ("replace", "immutable"):
        raise InvalidArgument(f"the option policy is {policy!r}; it must be replace or immutable")
    return bool(policy == "immutable")
