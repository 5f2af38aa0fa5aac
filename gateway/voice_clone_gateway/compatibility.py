"""Fields of other servers with the OpenAI speech API, in this gateway's own words.

vLLM-Omni, Kokoro-FastAPI and OpenAI itself have fields under other names and in other forms, and some that this gateway
does not need. A field that would change the audio is renamed, or refused; one whose value asks for nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from .fields import ALIASES, Knobs

TASKS = {"Base": "", "CustomVoice": "_custom_voice", "VoiceDesign": "_voice_design"}
"""vLLM-Omni's kinds of speech, and what the name of a model of each ends with."""

_Asks = Callable[[Any], bool]
_TIMES = "false; timestamp_granularities gives the times of words"
_NOTHING: dict[str, tuple[_Asks, str]] = {  # whether a value asks for nothing, and one that does
    "stream_options": (lambda value: isinstance(value, dict), "an object"),  # events have the usage in any case
    "word_timestamps": (lambda value: value is False, _TIMES),
    "return_timestamps": (lambda value: value is False, _TIMES),
    "return_download_link": (lambda value: value is False, "false"),
    "volume_multiplier": (lambda value: not isinstance(value, bool) and value == 1, "1"),
    "lang_code": (lambda value: False, "null, and name a language"),
    "download_format": (lambda value: False, "null"),
    "ref_audio_2": (lambda value: False, "null"),
    "ambient_sound": (lambda value: False, "null"),
    "duration_seconds": (lambda value: False, "null"),
}
_PROMOTED = (*Knobs.model_fields, *(alias for alias, name in ALIASES.items() if name in Knobs.model_fields))


def translate(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request in this gateway's words; values of a wrong type are left to the caller's checks. An empty
    text is none, except as the input.

    Raises:
        PydanticCustomError: two fields contradict each other, or one asks for what the gateway does not have. Its
            context has the field as `param`.
    """
    own = {name: None if value == "" and name != "input" else value for name, value in values.items()}
    _drop(own)
    _reference(own)
    _extra(own)
    _task(own)
    for alias, name in ALIASES.items():
        if own.get(alias) is not None:
            _set(own, name, own.pop(alias), alias)
        else:
            own.pop(alias, None)
    audio, embedding = own.get("reference_audio"), own.get("speaker_embedding")
    if isinstance(audio, list) and len(audio) == 1:
        own["reference_audio"] = audio[0]
    if isinstance(embedding, list) and len(embedding) == 1 and isinstance(embedding[0], list):
        own["speaker_embedding"] = embedding[0]
    return own


def _drop(own: dict[str, Any]) -> None:
    """Remove the fields that ask for nothing."""
    for name, (asks_nothing, allowed) in _NOTHING.items():
        if name not in own:
            continue
        value = own.pop(name)
        if value is not None and not asks_nothing(value):
            raise _error(name, f"this server does not support it; leave it out, or send {allowed}")


def _reference(own: dict[str, Any]) -> None:
    """Take reference audio and its text out of vLLM-Omni's list `references`."""
    references = own.pop("references", None)
    if references is None:
        return
    fields = {"audio_path": "reference_audio", "text": "reference_text"}
    form = 'it must be a list of one object, {"audio_path": URL, "text": WORDS}'
    if not isinstance(references, list) or len(references) != 1 or not isinstance(references[0], dict):
        raise _error("references", form)
    if not references[0].keys() <= fields.keys() or not isinstance(references[0].get("audio_path"), str):
        raise _error("references", form)
    for name, value in references[0].items():
        if value is not None:
            _set(own, fields[name], value, "references")


def _extra(own: dict[str, Any]) -> None:
    """Take parameters out of vLLM-Omni's object `extra_params`; what is no field of a speech is the family's option."""
    extra = own.pop("extra_params", None)
    if extra is None:
        return
    if not isinstance(extra, dict):
        raise _error("extra_params", "it must be an object")
    for name in _PROMOTED:
        if extra.get(name) is not None:
            _set(own, ALIASES.get(name, name), extra[name], "extra_params")
    rest = {name: value for name, value in extra.items() if name not in _PROMOTED}
    if rest:
        _set(own, "options", rest, "extra_params")


def _task(own: dict[str, Any]) -> None:
    """Take the model out of vLLM-Omni's `task_type`: without a model it stands for the first one of its kind. A model
    that is named, as here or as on the hub, must be of that kind; `Base` fits each one that clones.
    """
    task, model = own.pop("task_type", None), own.get("model")
    if task is None:
        return
    if not isinstance(task, str) or task not in TASKS:
        raise _error("task_type", f"it must be one of {', '.join(TASKS)}")
    if not TASKS[task]:
        return
    if model is None:
        own["model"] = task
    elif not str(model).endswith((task, TASKS[task])):
        raise _error("task_type", f"the model {model!r} is not of the kind {task}; leave one of them out")


def _set(own: dict[str, Any], name: str, value: Any, source: str) -> None:
    """Set a field that another one means, unless it is there with another value."""
    there = own.get(name)
    if there is not None and there != value and there != {"id": value}:
        raise _error(source, f"{source} and {name} differ and mean the same; give only one")
    own[name] = value if there is None else there


def _error(param: str, text: str) -> PydanticCustomError:
    return PydanticCustomError("incompatible", "{text}", {"text": text, "param": param})
