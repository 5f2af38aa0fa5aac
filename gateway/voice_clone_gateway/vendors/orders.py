"""From the fields of a vendor's request to a speech of ours.

Vendors ignore the fields that they do not know, and their clients send some that they do not need. So they are ignored
here, too; the header X-Speech-Warning names those from which a caller could expect something. `loudness`, which none of
them has, is in the query of the URL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError

from ..http.errors import HTTPFailure, validation_failure
from ..schemas import SpeechRequest
from ..speech.forms import Form
from ..speech.response import SpeechResponse
from .session import number


class Lenient(BaseModel):
    """A JSON object whose unknown fields are ignored, as null is."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    def unused(self) -> list[str]:
        """The names of the unknown fields that have a value."""
        given = self.model_extra or {}
        return sorted(name for name, value in given.items() if value not in (None, "", [], {}))


class TaggedRequest(SpeechRequest):
    """A request whose text may have `<break time="1s"/>`, as with ElevenLabs and Cartesia."""

    tag_pauses: ClassVar[bool] = True


def warn_of(names: Iterable[str]) -> list[str]:
    """The warning about fields that have no effect."""
    found = sorted(names)
    return [f"{', '.join(found)}: nothing here has this effect, so it is ignored"] if found else []


def speak(
    request: Request,
    values: Mapping[str, Any],
    theirs: Mapping[str, str],
    form: Form,
    ignored: Iterable[str] = (),
    kind: type[SpeechRequest] = SpeechRequest,
) -> SpeechResponse:
    """The answer to a request that speaks.

    Args:
        request: admitted.
        values: the fields of `SpeechRequest`; None for those that are not there.
        theirs: what the vendor calls some of these fields.
        form: of the answer.
        ignored: the vendor's names of what has no effect.
        kind: of the request.

    Raises:
        HTTPFailure: a value is invalid.
    """
    return SpeechResponse(request, speech_request(request, values, theirs, kind), form, warn_of(ignored), theirs)


def speech_request(
    request: Request,
    values: Mapping[str, Any],
    theirs: Mapping[str, str],
    kind: type[SpeechRequest] = SpeechRequest,
) -> SpeechRequest:
    """The request for these values, of a kind; see `speak`."""
    values = {**values, "loudness": number("loudness", request.query_params.get("loudness") or None)}
    try:
        return kind.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        failed = validation_failure(error.errors(include_url=False), SpeechRequest.model_fields)
        raise in_their_words(failed, theirs) from None


def in_their_words(failed: HTTPFailure, theirs: Mapping[str, str]) -> HTTPFailure:
    """An error about a field of ours as one about the vendor's."""
    detail = failed.body()["error"]
    param = detail["param"] or ""
    named = theirs.get(param) or ".".join(theirs.get(part, part) for part in param.split("."))
    if named == param:
        return failed
    text = detail["message"].removeprefix(f"{param}: ")
    return HTTPFailure(failed.status_code, f"{named}: {text}", detail["code"], param=named)


def family_of(model: str | None, prefixes: tuple[str, ...]) -> str | None:
    """The model family that a vendor's model stands for: None, the default one, for a model of the vendor's own."""
    return None if model is None or model.lower().startswith(prefixes) else model
