"""The operations of the speaker cache: one frozen dataclass for each, made by `parse` where a request comes in, and
the token that a caller needs for those that change voices or take them away.

A request is the name of an operation, inputs and options. All checks that need neither the limits of the server nor its
speakers are made by `parse`. In a dataclass, None stands for a choice that the caller left open, never for an input
that the operation needs.

A speaker is shown as a dictionary (`get`): name, generation, created_at, embedding_source; where they exist
consent, description, reference_text, mime_type, file_size, duration, sample_rate, embedding_dim, report (see
`ClipReport`), warnings [{code, message}], owner, shared; and artifacts [{model_type, mode, state, reason?,
extraction_ms?, fingerprint?}]. The state is `pending`, `processing`, `ready`, `failed`, or `unsupported`: it lacks what
the family needs.

The option `owner` of any operation says for whom the caller acts. That caller does not see the speakers of others,
except that `get`, `list` and `resolve` find those that are shared. Without it the caller is the operator.

    upload   name, audio or speaker_embedding, reference_text?, consent?, description?, model_type?; options
             wait (for artifacts), timeout, policy (`immutable` refuses to replace), shared, max_owned (how many
             the owner may have); with audio trim_silence (at its ends), strict (refuses a clip with warnings). The
             speaker.
    get      name. The speaker.
    list     options limit, after. {"speakers": [speaker, ...], "count": n}, by name; the first `limit` behind the name
             `after`.
    presets  option timeout. {"presets": [{"name", "model_type", "registered"}, ...]}: the voices that the checkpoints
             of the families bring, which can be spoken and neither changed nor deleted; `registered`: whether a speaker
             of that name, which this owner may use, is spoken in its place. A family whose encoder does not say in time
             (5 s) what its checkpoint brings is left out.
    delete   name. {"name", "generation", "deleted": true}
    prepare  name, model_type?; options mode, force, timeout. The speaker, with "status": "ready", "mode",
             "extraction_ms", and "message": "already prepared" if there was nothing to do.
    resolve  one of name, audio, speaker_embedding, voice_prompt; model_type?; reference_text? with audio; options mode,
             cache, timeout. The artifacts, and {"status": "hit" | "restored" | "miss" | "none", "model_type", "mode",
             "generation", "embedding_source", "extraction_ms", "fingerprint", "origin", "name"?,
             "reference_text"?}. Other processes file what they compute of the artifacts under `origin`, and drop it by
             that.
    stats    counters, sizes of the pools, histogram of extraction seconds; "model_types", the default first; "kept":
             {model: {"entries", "bytes", "voices"} that it keeps of voices, or null if it did not answer}.
    export   name?; options include_audio. {"speakers": [name, ...]}, and the bundle as artifacts.
    import   audio: a bundle; options reextract, policy, max_owned. {"speakers": [speaker, ...], "count": n}
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import InvalidArgument, PermissionDenied
from voice_clone.speakers.name import SpeakerName, check_word, parse_name

TOKEN_PARAMETER = "x-voice-token"
"""The request parameter that carries the write token: a header that Triton forwards."""
_READING = frozenset({"get", "list", "presets", "stats", "resolve"})  # operations without a token: speech needs these

MAX_TRANSCRIPT = 4096  # characters
MAX_NOTE = 1024  # characters of a consent or a description

Embedding = NDArray[np.float32]
Given = Mapping[str, Any]
"""Inputs or options by name; there is no entry for one that the caller left out."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What all operations have.

    Attributes:
        owner: for whom the caller acts; None: the operator.
    """

    owner: str | None


@dataclass(frozen=True, kw_only=True)
class Upload(Operation):
    """Register a speaker. Abstract: of a clip, or of an embedding.

    Attributes:
        consent, description: texts, if there are any.
        model_type: the only family whose artifacts are made; None: all that are made by default.
        wait: whether the answer waits for the artifacts.
        timeout: seconds to wait; None: as the server is configured.
        shared: whether other owners may use the speaker.
        immutable: refuse to replace a speaker.
        max_owned: how many speakers the owner may have; None: any number.
    """

    name: SpeakerName
    consent: str | None
    description: str | None
    model_type: str | None
    wait: bool
    timeout: float | None
    shared: bool
    immutable: bool
    max_owned: int | None


@dataclass(frozen=True, kw_only=True)
class UploadClip(Upload):
    """Register a speaker by a clip.

    Attributes:
        audio: an encoded clip or its data URL.
        reference_text: its transcript, if there is one.
        trim_silence: cut off the silence at its ends.
        strict: refuse a clip that has warnings.
    """

    audio: bytes
    reference_text: str | None
    trim_silence: bool
    strict: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class UploadEmbedding(Upload):
    """Register a speaker by a ready embedding, float32 [dimension], finite."""

    embedding: Embedding


@dataclass(frozen=True, kw_only=True)
class Get(Operation):
    """Show a speaker."""

    name: SpeakerName


@dataclass(frozen=True, kw_only=True)
class List(Operation):
    """Show speakers by name.

    Attributes:
        limit: how many; None: all.
        after: the key behind which they begin; "": at the first one.
    """

    limit: int | None
    after: str


@dataclass(frozen=True, kw_only=True)
class Presets(Operation):
    """Show the voices that the checkpoints of the families bring.

    Attributes:
        timeout: seconds to wait for encoders that have not said yet; None: five.
    """

    timeout: float | None


@dataclass(frozen=True, kw_only=True)
class Delete(Operation):
    """Delete a speaker."""

    name: SpeakerName


@dataclass(frozen=True, kw_only=True)
class ForFamily(Operation):
    """What the operations have that find or make artifacts.

    Attributes:
        model_type: the family; None: the server's default.
        mode: of the artifacts; None: the best one that the voice allows.
        timeout: seconds to wait; None: as the server is configured.
    """

    model_type: str | None
    mode: str | None
    timeout: float | None


@dataclass(frozen=True, kw_only=True)
class Prepare(ForFamily):
    """Make artifacts of a speaker; with `force` again, as a new generation."""

    name: SpeakerName
    force: bool


@dataclass(frozen=True, kw_only=True)
class Resolve(ForFamily):
    """Answer artifacts of a registered speaker; `cache` False neither asks nor fills the memory."""

    name: SpeakerName
    cache: bool


@dataclass(frozen=True, kw_only=True)
class ResolveClip(ForFamily):
    """Answer artifacts of a clip that is not registered.

    Attributes:
        audio, reference_text: as of `UploadClip`.
        cache: False neither asks nor fills the memory.
    """

    audio: bytes
    reference_text: str | None
    cache: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class ResolveEmbedding(ForFamily):
    """Answer artifacts of a ready embedding, as of `UploadEmbedding`."""

    embedding: Embedding


@dataclass(frozen=True, kw_only=True)
class ResolvePrompt(ForFamily):
    """Answer the artifacts in a bundle of one speaker."""

    bundle: bytes


@dataclass(frozen=True, kw_only=True)
class Stats(Operation):
    """Show counters."""


@dataclass(frozen=True, kw_only=True)
class Export(Operation):
    """Answer a bundle of one speaker; `name` None: of all speakers of the owner."""

    name: SpeakerName | None
    include_audio: bool


@dataclass(frozen=True, kw_only=True)
class Import(Operation):
    """Register the speakers of a bundle.

    Attributes:
        reextract: drop artifacts of another checkpoint where there is audio to make them again.
        immutable, max_owned: as of `Upload`.
    """

    bundle: bytes
    reextract: bool
    immutable: bool
    max_owned: int | None


@dataclass(frozen=True)
class Reply:
    """The answer of an operation: `result` fit for JSON, and for some operations `artifacts` (safetensors bytes)."""

    result: dict[str, Any]
    artifacts: bytes | None = None


def parse(operation: str, inputs: Mapping[str, Any], options: Given) -> Operation:
    """The operation that a request asks for.

    Args:
        operation: its name.
        inputs: the others by name; texts as str, audio and bundles as bytes, embeddings as arrays; None: left out.
        options: from JSON.

    Raises:
        InvalidArgument: says what is wrong, and what would be right.
    """
    form = _FORMS.get(operation)
    if form is None:
        raise InvalidArgument(f"unknown operation {operation!r}; it must be one of {', '.join(_FORMS)}")
    _check_options(options, *form.options, "owner")
    given = {name: value for name, value in inputs.items() if value is not None}
    for name in INPUTS:
        if name in given and name not in form.inputs:  # an operation refuses an input that it would ignore
            raise InvalidArgument(f"{name} has no meaning in this operation; leave it out")
    return form.read(given, options)


class WriteToken:
    """Allows operations that only read, and requests that carry the token; without a token, every operation.

    Args:
        token: printable ASCII; "" for none.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def check(self, operation: str | None, options: Mapping[str, Any], given: Any) -> None:
        """Check that the operation is allowed.

        Args:
            operation: of the speaker cache.
            options: its options; `prepare` writes where it has `force`.
            given: the parameter of the request; None if there is none.

        Raises:
            PermissionDenied: the token is missing or wrong.
        """
        if not self._token or operation in _READING or (operation == "prepare" and not options.get("force")):
            return
        sent = given.encode("utf-8", "surrogatepass") if isinstance(given, str) else b""
        if not hmac.compare_digest(sent, self._token):
            raise PermissionDenied(
                f"{operation} needs the server's write token, and this request carries "
                f"{'another one' if sent else 'none'}; send it in the header {TOKEN_PARAMETER}"
            )


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


def _upload(given: Given, options: Given) -> Upload:
    if ("audio" in given) == ("speaker_embedding" in given):
        raise InvalidArgument("give exactly one of audio and speaker_embedding")
    immutable, name = _immutable(options), _name(given)
    embedding = _embedding(given["speaker_embedding"]) if "speaker_embedding" in given else None
    if embedding is not None:
        if "reference_text" in given:
            raise InvalidArgument("a ready speaker_embedding allows no reference_text; leave it out, or send audio")
        for option in ("strict", "trim_silence"):
            if option in options:
                raise InvalidArgument(
                    f"a ready speaker_embedding allows no option {option}; leave it out, or send audio"
                )
    reference_text = _transcript(given)
    common: dict[str, Any] = {
        "owner": options.get("owner"),
        "name": name,
        "consent": check_text("consent", given.get("consent"), MAX_NOTE),
        "description": check_text("description", given.get("description"), MAX_NOTE),
        "model_type": _model_type(given),
        "wait": options.get("wait", False),
        "timeout": options.get("timeout"),
        "shared": options.get("shared", False),
        "immutable": immutable,
        "max_owned": options.get("max_owned"),
    }
    if embedding is not None:
        return UploadEmbedding(embedding=embedding, **common)
    return UploadClip(
        audio=given["audio"],
        reference_text=reference_text,
        trim_silence=options.get("trim_silence", False),
        strict=options.get("strict", False),
        **common,
    )


def _resolve(given: Given, options: Given) -> ForFamily:
    sources = [name for name in ("name", "audio", "speaker_embedding", "voice_prompt") if name in given]
    if len(sources) != 1:
        raise InvalidArgument("give exactly one of name, audio, speaker_embedding and voice_prompt")
    if "name" in given and "reference_text" in given:
        raise InvalidArgument("reference_text belongs to the upload of a voice; leave it out, or send audio")
    reference_text, common, cache = _transcript(given), _for_family(given, options), options.get("cache", True)
    if "name" in given:
        return Resolve(name=parse_name(given["name"]), cache=cache, **common)
    if "audio" in given:
        return ResolveClip(audio=given["audio"], reference_text=reference_text, cache=cache, **common)
    if reference_text is not None:
        raise InvalidArgument("a voice that is ready allows no reference_text; leave it out, or send audio")
    if "voice_prompt" in given:
        return ResolvePrompt(bundle=given["voice_prompt"], **common)
    return ResolveEmbedding(embedding=_embedding(given["speaker_embedding"]), **common)


def _prepare(given: Given, options: Given) -> Prepare:
    name = _name(given)
    return Prepare(name=name, force=options.get("force", False), **_for_family(given, options))


def _get(given: Given, options: Given) -> Get:
    return Get(owner=options.get("owner"), name=_name(given))


def _list(given: Given, options: Given) -> List:
    after = parse_name(options["after"]).key if "after" in options else ""
    return List(owner=options.get("owner"), limit=options.get("limit"), after=after)


def _presets(given: Given, options: Given) -> Presets:
    return Presets(owner=options.get("owner"), timeout=options.get("timeout"))


def _delete(given: Given, options: Given) -> Delete:
    return Delete(owner=options.get("owner"), name=_name(given))


def _stats(given: Given, options: Given) -> Stats:
    return Stats(owner=options.get("owner"))


def _export(given: Given, options: Given) -> Export:
    name = parse_name(given["name"]) if "name" in given else None
    return Export(owner=options.get("owner"), name=name, include_audio=options.get("include_audio", True))


def _import(given: Given, options: Given) -> Import:
    if "audio" not in given:
        raise InvalidArgument("audio is missing; give the bundle that an export answered")
    return Import(
        owner=options.get("owner"),
        bundle=given["audio"],
        reextract=options.get("reextract", False),
        immutable=_immutable(options),
        max_owned=options.get("max_owned"),
    )


class _Form(NamedTuple):
    """How a request for one operation looks: the inputs and options that it takes, and what reads them."""

    read: Callable[[Given, Given], Operation]
    inputs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


INPUTS = (
    "name", "model_type", "audio", "reference_text", "consent", "description", "speaker_embedding", "voice_prompt",
)  # fmt: skip
_FORMS = {
    "upload": _Form(
        _upload,
        INPUTS,  # voice_prompt, too: an upload has always ignored it
        ("wait", "policy", "timeout", "strict", "trim_silence", "shared", "max_owned"),
    ),
    "get": _Form(_get, ("name",)),
    "list": _Form(_list, (), ("limit", "after")),
    "presets": _Form(_presets, (), ("timeout",)),
    "delete": _Form(_delete, ("name",)),
    "prepare": _Form(_prepare, ("name", "model_type"), ("mode", "force", "timeout")),
    "resolve": _Form(
        _resolve,
        ("name", "model_type", "audio", "reference_text", "speaker_embedding", "voice_prompt"),
        ("mode", "cache", "timeout"),
    ),
    "stats": _Form(_stats),
    "export": _Form(_export, ("name",), ("include_audio",)),
    "import": _Form(_import, ("audio",), ("reextract", "policy", "max_owned")),
}
OPERATIONS = tuple(_FORMS)

_OPTIONS: dict[str, type] = {
    **dict.fromkeys(("wait", "force", "cache", "reextract", "strict", "trim_silence", "include_audio", "shared"), bool),
    **dict.fromkeys(("mode", "policy", "owner", "after"), str),
    **dict.fromkeys(("max_owned", "limit"), int),
    "timeout": float,
}


def _check_options(options: Given, *allowed: str) -> None:
    """Check that every option is one of `allowed` and of its type."""
    for name, value in options.items():
        if name not in allowed:
            raise InvalidArgument(f"unknown option {name!r}; this operation takes {', '.join(allowed)}")
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


def _name(given: Given) -> SpeakerName:
    if "name" not in given:
        raise InvalidArgument("name is missing; give the name of a voice")
    return parse_name(given["name"])


def _transcript(given: Given) -> str | None:
    return check_text("reference_text", given.get("reference_text"), MAX_TRANSCRIPT)


def _model_type(given: Given) -> str | None:
    return check_word("model_type", given["model_type"]) if "model_type" in given else None


def _for_family(given: Given, options: Given) -> dict[str, Any]:
    """The values of `ForFamily`."""
    return {
        "owner": options.get("owner"),
        "model_type": _model_type(given),
        "mode": check_word("the option mode", options["mode"]) if "mode" in options else None,
        "timeout": options.get("timeout"),
    }


def _immutable(options: Given) -> bool:
    """Whether an upload or an import refuses to replace."""
    policy = options.get("policy", "replace")
    if policy not in ("replace", "immutable"):
        raise InvalidArgument(f"the option policy is {policy!r}; it must be replace or immutable")
    return bool(policy == "immutable")


def _embedding(embedding: NDArray[Any]) -> Embedding:
    """A ready speaker embedding as float32 [dimension]; neither empty, nor with values that are not finite."""
    if embedding.ndim != 1 or not embedding.size or embedding.dtype.kind not in "fiu":
        raise InvalidArgument(f"speaker_embedding must be numbers of shape [dimension], not {list(embedding.shape)}")
    with np.errstate(over="ignore"):
        values = embedding.astype(np.float32)
    if not np.isfinite(values).all():
        raise InvalidArgument("speaker_embedding holds NaN or infinity; every value must be finite")
    return values
