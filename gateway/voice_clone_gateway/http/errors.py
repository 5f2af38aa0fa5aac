"""Errors in the form of the OpenAI API: `{"error": {"message", "type", "param", "code"}}` and an HTTP status."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import Scope
from starlette.websockets import WebSocketDisconnect
from voice_clone_client import ConnectionFailed, Incomplete, PermissionDenied, VoiceCloneError, VoiceNotFound
from voice_clone_errors.kinds import BY_SLUG, INVALID, KINDS, LIMIT, SERVER, Kind
from voice_clone_errors.messages import worded
from voice_clone_program.names import nearest

from ..places import TooManyWait
from ..schemas import SpeechRequest
from ..services import services_of

log = logging.getLogger(__name__)

CLIENT_CLOSED = 499  # no client reads this answer; it appears in logs and metrics
MAX_PATH = 200  # characters of an unknown path that are compared with the known ones
_INTERNAL = "internal"
# The openai clients repeat a request after 409, 429 and 5xx unless a header forbids it.
_FINAL = tuple(kind.gateway or kind.slug for kind in KINDS if kind.final)
_OF_VOICES = (
    *("name", "consent", "audio_sample", "speaker_description", "description", "strict", "trim_silence"),
    *(
        "replace",
        "shared",
        "design",
        "design_model",
        "design_seed",
        "seeds",
        "limit",
        "after",
        "reextract",
        "file",
        "recording",
        "transcribe",
    ),
)
FIELDS = {**{name: name for name in (*SpeechRequest.model_fields, *_OF_VOICES)}, "text": "input"}
"""The fields of requests, by the client's names of them."""


class ErrorDetail(BaseModel):
    """An error."""

    model_config = ConfigDict(extra="forbid")
    message: str
    """What is invalid, and what is valid."""
    type: str
    param: str | None = None
    """The invalid field, if the error has one."""
    code: str
    hint: str | None = None
    """Which call or setting helps; absent if none does."""


class ErrorBody(BaseModel):
    """The body of every error."""

    model_config = ConfigDict(extra="forbid")
    error: ErrorDetail


class HTTPFailure(HTTPException):
    """An error with its whole answer. The framework passes an HTTPException on from wherever it is raised.

    Args:
        status: of the answer.
        message: for the caller: what is invalid, and what is valid.
        code: identifies the error for programs.
        type: the kind of error, one of the OpenAI API's.
        param: the invalid field.
        headers: of the answer.
        hint: which call or setting helps.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        type: str = INVALID,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        detail = {"message": message, "type": type, "param": param, "code": code}
        self._body = {"error": detail if hint is None else {**detail, "hint": hint}}

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        return self._body

    @property
    def final(self) -> bool:
        """Whether the same request would have the same answer again, though clients repeat it after this status."""
        return self._body["error"]["code"] in _FINAL

    def response(self, scope: Scope) -> Response:
        """The answer in the shape of the API that a request speaks, which is `state.dialect` of the application."""
        shape = services_of(scope).dialect(scope)
        return shape(self, scope)


Shape = Callable[[HTTPFailure, Scope], Response]
"""Makes the answer to a request whose scope this is."""


def own_shape(failed: HTTPFailure, scope: Scope) -> Response:
    """The shape of this gateway's own API."""
    final = {"x-should-retry": "false"} if failed.final else {}
    return JSONResponse(failed.body(), failed.status_code, {**(failed.headers or {}), **final})


def _entry(error: BaseException) -> Kind | None:
    """The kind of an error of the client; None: it is a fault, whose detail is for the log."""
    kind = BY_SLUG.get(error.slug) if isinstance(error, VoiceCloneError) else None
    return None if kind is None or _code(kind) == _INTERNAL else kind


def _code(kind: Kind) -> str:
    return kind.gateway or kind.slug


def limit_reached(message: str, code: str, wait: int) -> HTTPFailure:
    """The answer to a key that has reached a limit of its own; it may try again after `wait` seconds."""
    return HTTPFailure(429, message, code, LIMIT, headers={"Retry-After": str(wait)})


def error_code(error: BaseException) -> str:
    """The code with which an error is answered; `cancelled` for one whose client has left."""
    if isinstance(error, HTTPFailure):
        return str(error.body()["error"]["code"])
    if isinstance(error, ValidationError):
        return "invalid_argument"
    if isinstance(error, TooManyWait):
        return error.code
    if isinstance(error, WebSocketDisconnect):
        return "client_gone"
    if (entry := _entry(error)) is not None:
        return _code(entry)
    return _INTERNAL if isinstance(error, Exception) else "cancelled"


def failure(error: Exception, request_id: str, retry_after: int = 1, fields: Mapping[str, str] = FIELDS) -> HTTPFailure:
    """The answer to `error`; details that the caller must not see are logged with the request's id."""
    failed = _failure(error, request_id, retry_after, fields)
    error.__traceback__ = error.__context__ = None  # their frames have the body and the audio until the answer is sent
    return failed


def _failure(error: Exception, request_id: str, retry_after: int, fields: Mapping[str, str]) -> HTTPFailure:
    if isinstance(error, HTTPFailure):
        return error
    if isinstance(error, TooManyWait):
        return limit_reached(error.text, error.code, retry_after)
    if isinstance(error, HTTPException):
        return _http_failure(error)
    if isinstance(error, RequestValidationError | ValidationError):
        return validation_failure(error.errors(), tuple(SpeechRequest.model_fields))
    if (entry := _entry(error)) is None:
        log.error(
            "request %s failed: %s", request_id, error, exc_info=None if isinstance(error, VoiceCloneError) else error
        )
        message = f"the server failed to answer; its log has the detail under {request_id}"
        return HTTPFailure(500, message, _INTERNAL, SERVER)
    assert isinstance(error, VoiceCloneError)
    message = worded(error.text, lambda name, value: f"{fields.get(name, name)} {value}".rstrip())
    root, dot, option = (error.field or "").partition(".")
    param = f"{fields[root]}{dot}{option}" if root in fields else None
    if isinstance(error, VoiceNotFound):  # not a hint: the clients of vendors show the message alone
        message += "; GET /v1/audio/voices lists the voices, POST registers one, "
        message += f"{_alias_command(error.text)} gives one this name"
    if isinstance(error, ConnectionFailed):  # its text contains the server's address
        log.error("request %s: the Triton server cannot be reached: %s", request_id, error)
        message = "the speech server cannot be reached or is not ready; try again later"
    if isinstance(error, PermissionDenied):  # its text is for the operator of the gateway
        log.error("request %s: the Triton server refused the gateway: %s", request_id, error)
        message = "the gateway lacks the token or key that the speech server requires; report this to its operator"
    hint = next((text for kind, text in _HINTS.items() if isinstance(error, kind)), None)
    headers = {"Retry-After": str(retry_after)} if entry.status == 503 else {}
    return HTTPFailure(entry.status, message, _code(entry), entry.type, param, headers, hint)


_HINTS = {
    VoiceNotFound: "the gateway's --default-voice speaks for each name of OpenAI's and Deepgram's own voices",
    Incomplete: "with allow_partial true the answer has what was made",
}


_QUOTED = re.compile(r"'([^']+)'")


def _alias_command(text: str) -> str:
    """The command that lets a voice speak by the name that an error quotes."""
    found = _QUOTED.search(text)
    return f"voice-clone aliases set {shlex.quote(found[1] if found else 'ALIAS')}=VOICE"


def install(app: FastAPI) -> None:
    """Answer every error of `app` in the same form."""

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, RequestValidationError):
            error = validation_failure(error.errors(), _fields_of(request))
        if isinstance(error, HTTPException) and type(error) is not HTTPFailure:
            if error.status_code == 404:
                error = _no_such_path(request)
            elif error.status_code == 405:
                error = _method_not_allowed(request, error)
        failed = failure(error, request.state.request_id, services_of(request).settings.retry_after)
        return failed.response(request.scope)

    for kind in (VoiceCloneError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, handle)


_MEANT = {
    **dict.fromkeys(("text", "content", "prompt", "ssml"), "input"),
    **dict.fromkeys(("format", "outputformat", "audioformat", "encoding", "container"), "response_format"),
    **dict.fromkeys(("voiceid", "voicename", "speakerid"), "voice"),
    **dict.fromkeys(("lang", "languagecode"), "language"),
    **dict.fromkeys(("rate", "speakingrate", "tempo"), "speed"),
    **dict.fromkeys(("file", "audio", "clip"), "audio_sample"),
    **dict.fromkeys(("transcript", "prompttext"), "reference_text"),
    "modelid": "model",
    "description": "speaker_description",
}
"""What others call the fields, in small letters and without signs."""


def _nearest(name: str, known: Collection[str]) -> str | None:
    """The field that is probably meant by the name of one that there is not."""
    meant = _MEANT.get(_plain(name))
    near = [meant] if meant in known else nearest(name, known, _plain)
    return near[0] if near else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _fields_of(request: Request) -> Collection[str]:
    models = [field.field_info.annotation for field in request.scope["route"].dependant.body_params]
    return [name for model in models for name in getattr(model, "model_fields", ())]


_SUBJECT = re.compile(r"\A[A-Z][a-z]+ should")  # what pydantic calls a value: Input, String, List, ...


def validation_failure(errors: Sequence[Any], known: Collection[str]) -> HTTPFailure:
    """The answer to the first error of pydantic, or to a field that is unknown: another may be missing in its place."""
    first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    location = [part for part in first["loc"] if part not in ("body", "query", "path")]
    kind, text, context = first["type"], first["msg"], first.get("ctx", {})
    # The names of fields and indices of lists; the rest is pydantic's own, such as a member of a union.
    pairs = zip(["", *location], location, strict=False)  # each with what is before it
    named = (part for before, part in pairs if before == "" or isinstance(before, int) or isinstance(part, int))
    param = ".".join(map(str, named))
    param = param or context.get("param")  # of an error that the whole object has
    if kind == "extra_forbidden":
        near = _nearest(str(location[-1]), known)
        text = f"this field is unknown{f'; did you mean {near}?' if near else ', leave it out'}"
    elif kind == "missing":
        text = "this field is required" if param else "the request has no body; send one"
    elif kind == "bytes_type":
        text = "the body must be bytes, sent as application/octet-stream"
    elif kind == "string_unicode":
        text = "it has half a character (a lone surrogate); send whole ones"
    elif kind in ("model_attributes_type", "model_type", "dict_type") and param is None:
        text = "the body must be a JSON object, sent as application/json"
    elif "UploadFile" in text:
        text = "it must be a file"
    else:
        text = _SUBJECT.sub("it should", text.removeprefix("Value error, ").partition(", unable to")[0])
        text = text.replace(" after validation", "").replace("an instance of str", "a valid string")
    return HTTPFailure(400, f"{param}: {text}" if param else text, "invalid_argument", param=param)


def _http_failure(error: HTTPException) -> HTTPFailure:
    """Errors of the framework: an unknown route, a wrong method, a body that is too large or cannot be parsed."""
    code = HTTPStatus(error.status_code).name.lower()
    message = str(error.detail)
    kind = SERVER if error.status_code >= 500 else INVALID
    return HTTPFailure(error.status_code, message, code, kind, headers=error.headers)


def _no_such_path(request: Request) -> HTTPFailure:
    """The answer with the path that is probably meant: often a client's base URL lacks /v1, or has too much."""
    known = [path for path in request.app.openapi()["paths"] if "{" not in path]
    asked = request.scope["path"][:MAX_PATH]
    ends = [path for path in known if asked.endswith(path.removeprefix("/v1")) and path != "/"]
    near = ends or nearest(asked, known, str)
    hint = f"did you mean {near[0]}? The base URL of an OpenAI client ends with /v1" if near else None
    return HTTPFailure(404, "there is no such path; /openapi.json lists all", "not_found", hint=hint)


def _method_not_allowed(request: Request, error: HTTPException) -> HTTPFailure:
    """The answer with all methods of the path; the framework lists those of one route only.

    A path without a parameter has its own methods alone, even if a path with a parameter matches it, too.
    """
    paths = request.app.openapi()["paths"]
    own = paths.get(request.scope["path"])
    fitting = (entry for path, entry in paths.items() if compile_path(path)[0].match(request.scope["path"]))
    found = [own] if own else [*fitting]
    methods = {method.upper() for entry in found for method in entry} or {*(error.headers or {})["Allow"].split(", ")}
    allowed = ", ".join(sorted({*methods, "HEAD"} if "GET" in methods else methods))
    return HTTPFailure(
        405, f"this path takes other methods: {allowed}", "method_not_allowed", headers={"Allow": allowed}
    )


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The entries of an OpenAPI description for these statuses, all with the same body."""
    more = (408,) if 413 in statuses else ()
    return {status: {"model": ErrorBody, "description": _DESCRIPTIONS[status]} for status in (*statuses, *more)}


_DESCRIPTIONS = {
    400: "The request is invalid; the message says what is valid",
    401: "The key is missing or unknown",
    403: "The key does not allow this",
    404: "No such voice, model, speech, job or path",
    408: "The body comes too slowly",
    409: "The name is taken and may not be replaced, or the job has not completed",
    410: "A voice of the job was deleted, and its speech with it",
    413: "The body is too large",
    416: "The file has no such part",
    422: "The Idempotency-Key is that of another request",
    429: "A limit of this key is reached; the message says which",
    500: "The server failed",
    501: "The server or its checkpoint does not support it",
    503: "Overloaded, or the speech server cannot be reached; try again after Retry-After seconds",
    504: "Not completed in time",
}
