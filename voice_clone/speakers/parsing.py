"""From a request to an operation of the speaker cache: `parse`.

All checks that need neither the limits of the server nor its speakers are made here. operations.py says what each
operation takes and answers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import InvalidArgument, listed, quoted
from voice_clone.speakers.name import ReservedNames, SpeakerName, check_word, parse_name
from voice_clone.speakers.operations import (
    Allowance,
    Delete,
    Embedding,
    Export,
    ForFamily,
    Get,
    Import,
    KeepDictionary,
    KeepLoudness,
    List,
    Operation,
    Prepare,
    Presets,
    RecordConsent,
    Resolve,
    ResolveClip,
    ResolveEmbedding,
    ResolvePrompt,
    SetAlias,
    Stats,
    Upload,
    UploadClip,
    UploadEmbedding,
)
from voice_clone.speakers.record import Kind, is_loudness, style_name
from voice_clone.speakers.take import MAX_TAKES

MAX_TRANSCRIPT = 4096  # characters
MAX_NOTE = 1024  # characters of a consent or a description
MAX_SEED = 2**64 - 1  # of a designed voice
CONSENT = "cons_"  # begins the id of a recording
DICTIONARY = "dict_"  # begins the id of a dictionary
MAX_DICTIONARY = 4 << 20  # bytes of its content
MAX_ABOUT = 8192  # characters
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,4}")

Given = Mapping[str, Any]
"""Inputs or options by name; there is no entry for one that the caller left out."""


def parse(operation: str, inputs: Mapping[str, Any], options: Given) -> Operation:
    """The operation that a request asks for.

    Args:
        operation: its name.
        inputs: the others by name; texts as str, audio and bundles as bytes, embeddings as arrays; None: left out.
        options: from JSON.

    Raises:
        InvalidArgument: says what is wrong, and what would be right.
    """
    form = FORMS.get(operation)
    if form is None:
        raise InvalidArgument(f"unknown `operation` {quoted(operation)}; it must be one of {', '.join(FORMS)}")
    _check_options(options, *form.options, "owner")
    given = {name: value for name, value in inputs.items() if value is not None}
    for name in INPUTS:
        if name in given and name not in form.inputs:  # an operation refuses an input that it would ignore
            raise InvalidArgument(f"`{name}` has no meaning in this operation; leave it out")
    return form.read(given, options)


def check_text(field_name: str, text: str | None, most: int) -> str | None:
    """A text as it is stored: not blank, at most `most` characters, without NUL.

    Raises:
        InvalidArgument: the text is otherwise.
    """
    if text is None:
        return None
    if not text.strip():
        raise InvalidArgument(f"`{field_name}` is blank; give some text or leave it out")
    if len(text) > most:
        raise InvalidArgument(f"`{field_name}` has {len(text)} characters; at most {most} are allowed")
    if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
        raise InvalidArgument(f"`{field_name}` holds characters that are no text (NUL or a lone surrogate)")
    return text


def _upload(given: Given, options: Given) -> Upload:
    if ("audio" in given) == ("speaker_embedding" in given):
        raise InvalidArgument("give exactly one of `audio` and `speaker_embedding`")
    name = _name(given)
    embedding = _embedding(given["speaker_embedding"]) if "speaker_embedding" in given else None
    if embedding is not None:
        if "reference_text" in given:
            raise InvalidArgument(
                "a ready `speaker_embedding` allows no `reference_text`; leave it out, or send `audio`"
            )
        for option in ("strict", "trim_silence", "style", "takes", *_DESIGN):
            if option in options:
                raise InvalidArgument(
                    f"a ready `speaker_embedding` allows no option `{option}`; leave it out, or send `audio`"
                )
    if "style" in options and options.get("shared"):
        raise InvalidArgument("a `style` is shared with its voice; leave out the option `shared`")
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
        "replace": options.get("replace", False),
        "allowance": _allowance(options),
    }
    if embedding is not None:
        return UploadEmbedding(embedding=embedding, **common)
    return UploadClip(
        audio=given["audio"],
        reference_text=reference_text,
        trim_silence=options.get("trim_silence", False),
        strict=options.get("strict", False),
        style=_style(options),
        takes=_takes(options, given["audio"]),
        **_design(options),
        **common,
    )


def _takes(options: Given, audio: bytes) -> tuple[int, ...]:
    sizes = tuple(options.get("takes", ()))
    if not all(type(size) is int and size > 0 for size in sizes) or (sizes and sum(sizes) != len(audio)):
        raise InvalidArgument(
            f"the option `takes` must be the sizes of the files in `audio`, {len(audio)} bytes together"
        )
    if len(sizes) > MAX_TAKES:
        raise InvalidArgument(f"`audio` has {len(sizes)} files; at most {MAX_TAKES} are allowed")
    return sizes


def _design(options: Given) -> dict[str, Any]:
    """The values of a designed voice.

    Raises:
        InvalidArgument: only some of them are given, or one is out of range.
    """
    lacking = [name for name in _DESIGN if name not in options]
    if 0 < len(lacking) < len(_DESIGN):
        raise InvalidArgument(f"a designed voice has {', '.join(_DESIGN)}; the option `{lacking[0]}` is missing")
    if not lacking and options["design_seed"] > MAX_SEED:
        raise InvalidArgument("the option `design_seed` must be below 2**64")
    return {
        "design": check_text("design", options.get("design"), MAX_NOTE),
        "design_model": None if lacking else check_word("the option `design_model`", options["design_model"]),
        "design_seed": options.get("design_seed"),
    }


def _resolve(given: Given, options: Given) -> ForFamily:
    sources = [name for name in ("name", "audio", "speaker_embedding", "voice_prompt") if name in given]
    if len(sources) != 1:
        raise InvalidArgument("give exactly one of `name`, `audio`, `speaker_embedding` and `voice_prompt`")
    if "name" in given and "reference_text" in given:
        raise InvalidArgument("`reference_text` belongs to the upload of a voice; leave it out, or send `audio`")
    reference_text, common, cache = _transcript(given), _for_family(given, options), options.get("cache", True)
    if "style" in options and sources[0] not in ("name", "voice_prompt"):
        raise InvalidArgument("only a voice has a `style`; leave it out, or give `name` or `voice_prompt`")
    if "name" in given:
        return Resolve(name=parse_name(given["name"]), cache=cache, **common)
    if "audio" in given:
        return ResolveClip(audio=given["audio"], reference_text=reference_text, cache=cache, **common)
    if reference_text is not None:
        raise InvalidArgument("a voice that is ready allows no `reference_text`; leave it out, or send `audio`")
    if "voice_prompt" in given:
        return ResolvePrompt(bundle=given["voice_prompt"], **common)
    return ResolveEmbedding(embedding=_embedding(given["speaker_embedding"]), **common)


def _prepare(given: Given, options: Given) -> Prepare:
    name = _name(given)
    return Prepare(name=name, force=options.get("force", False), **_for_family(given, options))


def _record_consent(given: Given, options: Given) -> RecordConsent:
    name, language = _name(given), options.get("language")
    if not name.key.startswith(CONSENT):
        raise InvalidArgument(f"the `name` of a recording is its id, which begins with {CONSENT}")
    if ("audio" in given) != (language is not None):
        raise InvalidArgument("a new recording has `audio` and the option `language`; a new description has neither")
    if language is not None and not _LANGUAGE.fullmatch(language):
        raise InvalidArgument(f"the option `language` is a tag of BCP 47, such as en-US; {quoted(language)} is none")
    description = check_text("description", given.get("description"), MAX_NOTE)
    if description is None:
        raise InvalidArgument("`description` is missing; say what this recording is")
    return RecordConsent(
        owner=options.get("owner"),
        name=name,
        audio=given.get("audio"),
        description=description,
        language=language,
        allowance=_allowance(options),
    )


def _keep_dictionary(given: Given, options: Given) -> KeepDictionary:
    name, content = _name(given), given.get("audio") or None
    about = check_text("about", options.get("about"), MAX_ABOUT)
    if not name.key.startswith(DICTIONARY):
        raise InvalidArgument(f"the `name` of a dictionary is its id, which begins with {DICTIONARY}")
    if about is None:
        raise InvalidArgument("the option `about` is missing; say what this dictionary is")
    if content is None and "generation" not in options:
        raise InvalidArgument("`audio` is missing; give the content of a new dictionary")
    if len(content or b"") > MAX_DICTIONARY:
        raise InvalidArgument(f"`audio` has {len(content or b'')} bytes; a dictionary has at most {MAX_DICTIONARY}")
    return KeepDictionary(
        owner=options.get("owner"),
        name=name,
        content=content,
        about=about,
        generation=options.get("generation"),
        allowance=_allowance(options),
    )


def _keep_loudness(given: Given, options: Given) -> KeepLoudness:
    for name in ("mode", "generation", "loudness"):
        if name not in options:
            raise InvalidArgument(f"the option `{name}` is missing; a loudness is that of a generation in a mode")
    model_type = _model_type(given)
    if model_type is None:
        raise InvalidArgument("`model_type` is missing; name the family that has this loudness")
    return KeepLoudness(
        owner=options.get("owner"),
        name=_name(given),
        model_type=model_type,
        mode=check_word("the option `mode`", options["mode"]),
        generation=options["generation"],
        loudness=options["loudness"],
        style=_style(options) or "",
    )


def _set_alias(given: Given, options: Given) -> SetAlias:
    if "voice" not in options:
        raise InvalidArgument("the option `voice` is missing; give the name of a voice")
    name, voice = _name(given), _other_name("option `voice`", options["voice"])
    if name.key == voice.key:
        raise InvalidArgument("a voice needs no alias of its own name; give it another one")
    return SetAlias(owner=options.get("owner"), name=name, voice=voice, allowance=_allowance(options))


def _get(given: Given, options: Given) -> Get:
    return Get(owner=options.get("owner"), name=_name(given), kind=_kind(options))


def _list(given: Given, options: Given) -> List:
    after = _other_name("option `after`", options["after"]).key if options.get("after") else ""
    return List(owner=options.get("owner"), limit=options.get("limit"), after=after, kind=_kind(options))


def _presets(given: Given, options: Given) -> Presets:
    return Presets(owner=options.get("owner"), timeout=options.get("timeout"))


def _delete(given: Given, options: Given) -> Delete:
    return Delete(owner=options.get("owner"), name=_name(given), kind=_kind(options), style=_style(options))


def _stats(given: Given, options: Given) -> Stats:
    return Stats(owner=options.get("owner"), synthesizers=options.get("synthesizers", False))


def _export(given: Given, options: Given) -> Export:
    if options.get("offset") and "id" not in options:
        raise InvalidArgument("the option `offset` needs the option `id` with which the bundle was begun")
    return Export(
        owner=options.get("owner"),
        name=parse_name(given["name"]) if "name" in given else None,
        include_audio=options.get("include_audio", True),
        id=check_word("the option `id`", options["id"]) if "id" in options else "",
        offset=options.get("offset", 0),
    )


def _import(given: Given, options: Given) -> Import:
    if "audio" not in given:
        raise InvalidArgument("`audio` is missing; give the bundle that an export answered")
    in_parts = "part" in options or "more" in options
    if in_parts != ("name" in given):
        raise InvalidArgument("give both `name` and the option `part` where a bundle comes in parts, else neither")
    return Import(
        owner=options.get("owner"),
        bundle=given["audio"],
        name=_name(given).key if in_parts else "",
        part=options.get("part", 0),
        more=options.get("more", False),
        reextract=options.get("reextract", False),
        replace=options.get("replace", False),
        allowance=_allowance(options),
    )


class _Form(NamedTuple):
    """How a request for one operation looks: the inputs and options that it takes, and what reads them."""

    read: Callable[[Given, Given], Operation]
    inputs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


_DESIGN = ("design", "design_model", "design_seed")
_LIMITS = ("max_owned", "max_owned_bytes")
INPUTS = (
    "name", "model_type", "audio", "reference_text", "consent", "description", "speaker_embedding", "voice_prompt",
)  # fmt: skip
FORMS = {
    "upload": _Form(
        _upload,
        INPUTS,  # voice_prompt, too: an upload has always ignored it
        (
            *("wait", "replace", "timeout", "strict", "trim_silence", "style", "takes", "shared", *_LIMITS),
            *("reserved", *_DESIGN),
        ),
    ),
    "get": _Form(_get, ("name",), ("kind",)),
    "list": _Form(_list, (), ("limit", "after", "kind")),
    "presets": _Form(_presets, (), ("timeout",)),
    "delete": _Form(_delete, ("name",), ("kind", "style")),
    "record_consent": _Form(_record_consent, ("name", "audio", "description"), ("language", *_LIMITS)),
    "keep_dictionary": _Form(_keep_dictionary, ("name", "audio"), ("about", "generation", *_LIMITS)),
    "keep_loudness": _Form(_keep_loudness, ("name", "model_type"), ("mode", "generation", "loudness", "style")),
    "set_alias": _Form(_set_alias, ("name",), ("voice", *_LIMITS, "reserved")),
    "prepare": _Form(_prepare, ("name", "model_type"), ("mode", "force", "timeout", "style")),
    "resolve": _Form(
        _resolve,
        ("name", "model_type", "audio", "reference_text", "speaker_embedding", "voice_prompt"),
        ("mode", "cache", "timeout", "style"),
    ),
    "stats": _Form(_stats, (), ("synthesizers",)),
    "export": _Form(_export, ("name",), ("include_audio", "id", "offset")),
    "import": _Form(_import, ("audio", "name"), ("reextract", "replace", *_LIMITS, "reserved", "part", "more")),
}

_OPTIONS: dict[str, type] = {
    **dict.fromkeys(
        (
            "wait",
            "force",
            "cache",
            "reextract",
            "replace",
            "strict",
            "trim_silence",
            "include_audio",
            "shared",
            "more",
            "synthesizers",
        ),
        bool,
    ),
    **dict.fromkeys(
        ("mode", "owner", "about", "after", "design", "design_model", "id", "kind", "language", "style", "voice"), str
    ),
    **dict.fromkeys((*_LIMITS, "limit", "design_seed", "part", "offset", "generation"), int),
    **dict.fromkeys(("timeout", "loudness"), float),
    **dict.fromkeys(("reserved", "takes"), list),
}


_KINDS = {bool: "true or false", str: "text", list: "a list"}


def _check_options(options: Given, *allowed: str) -> None:
    """Check that every option is one of `allowed` and of its type."""
    for name, value in options.items():
        if name not in allowed:
            raise InvalidArgument(f"unknown option {quoted(name)}; this operation takes {listed(allowed)}")
        kind = _OPTIONS[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name == "loudness":
            if not is_loudness(value):
                raise InvalidArgument("the option `loudness` must be from -100 to 10 LUFS")
        elif kind is float:
            if not number or not 0.0 < value <= sys.float_info.max:
                raise InvalidArgument(f"the option `{name}` must be a number of seconds > 0")
        elif kind is int:
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise InvalidArgument(f"the option `{name}` must be a whole number >= 0")
        elif not isinstance(value, kind):
            raise InvalidArgument(f"the option `{name}` must be {_KINDS[kind]}")
        elif name == "owner":
            check_word("the option `owner`", str(value))


def _allowance(options: Given) -> Allowance:
    most, most_bytes = map(options.get, _LIMITS)
    return Allowance(options.get("owner"), most, ReservedNames(options.get("reserved", ())), most_bytes)


def _kind(options: Given) -> Kind:
    kinds = get_args(Kind)
    for kind in kinds:
        if options.get("kind", "voice") == kind:
            return kind  # type: ignore[no-any-return]  # `get_args` has no types
    raise InvalidArgument(f"the option `kind` is {listed(kinds)}, not {quoted(options['kind'])}")


def _other_name(what: str, text: str) -> SpeakerName:
    """A name that is not the input `name`; errors say what it is."""
    try:
        return parse_name(text)
    except InvalidArgument as error:
        raise InvalidArgument(error.args[0].replace("`name`", what)) from None


def _name(given: Given) -> SpeakerName:
    if "name" not in given:
        raise InvalidArgument("`name` is missing; give the name of a voice")
    return parse_name(given["name"])


def _transcript(given: Given) -> str | None:
    return check_text("reference_text", given.get("reference_text"), MAX_TRANSCRIPT)


def _model_type(given: Given) -> str | None:
    return check_word("`model_type`", given["model_type"]) if "model_type" in given else None


def _for_family(given: Given, options: Given) -> dict[str, Any]:
    """The values of `ForFamily`."""
    return {
        "owner": options.get("owner"),
        "model_type": _model_type(given),
        "mode": check_word("the option `mode`", options["mode"]) if "mode" in options else None,
        "timeout": options.get("timeout"),
        "style": options.get("style"),
    }


def _style(options: Given) -> str | None:
    return style_name(options["style"]) if "style" in options else None


def _embedding(embedding: NDArray[Any]) -> Embedding:
    """A ready speaker embedding as float32 [dimension]; neither empty, nor with values that are not finite."""
    if embedding.ndim != 1 or not embedding.size or embedding.dtype.kind not in "fiu":
        raise InvalidArgument(f"`speaker_embedding` must be numbers of shape [dimension], not {list(embedding.shape)}")
    with np.errstate(over="ignore"):
        values = embedding.astype(np.float32)
    if not np.isfinite(values).all():
        raise InvalidArgument("`speaker_embedding` holds NaN or infinity; every value must be finite")
    return values
