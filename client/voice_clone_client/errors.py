"""The error tree; its kinds are those of `voice_clone_errors.kinds`.

`str(error)` is the text without the slug, and `error.field` is the parameter that is wrong. The text has the names of
parameters in backquotes, see `voice_clone_errors.messages`; the server escapes the backquotes of what it quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from voice_clone_errors import messages
from voice_clone_errors.messages import plain as plain
from voice_clone_errors.messages import quoted as quoted
from voice_clone_errors.messages import worded as worded


class VoiceCloneError(Exception):
    """Base of all errors."""

    slug = "internal"
    _field: str | None = None  # where the text names none

    @property
    def text(self) -> str:
        """The text with the names of parameters in backquotes."""
        return str(self.args[0]) if self.args else ""

    @property
    def field(self) -> str | None:
        """The parameter that is wrong, such as `reference_text` or `options.style`; None if the error has none."""
        return messages.field(self.text) or self._field

    def __str__(self) -> str:
        return plain(self.text)


class InvalidArgument(VoiceCloneError):
    """The request is invalid."""

    slug = "invalid_argument"


class VoiceNotFound(VoiceCloneError):
    """No voice of that name is registered."""

    slug = "speaker_not_found"
    _field = "name"


class StreamNotFound(VoiceCloneError):
    """There is no speech to whose text this could be appended."""

    slug = "stream_not_found"


class NameReserved(VoiceCloneError):
    """The operator means another voice by the name; choose another one."""

    slug = "name_reserved"


class VoiceExists(VoiceCloneError):
    """The name is taken, and the call does not say `replace`, or the voice is another owner's."""

    slug = "speaker_exists"
    _field = "name"


class PermissionDenied(VoiceCloneError):
    """The server requires a token, or the key of a restricted protocol, that was not sent."""

    slug = "permission_denied"


class QuotaExceeded(VoiceCloneError):
    """The owner has as many voices as it may have; delete one first."""

    slug = "quota_exceeded"


class Unsupported(VoiceCloneError):
    """The server or its checkpoint does not support the request."""

    slug = "unsupported"


class Overloaded(VoiceCloneError):
    """A bounded queue or the store of the server is full; try again later."""

    slug = "overloaded"


class Cancelled(VoiceCloneError):
    """The stream, or the whole client, was closed before the end of the call."""

    slug = "cancelled"


class DeadlineExceeded(VoiceCloneError):
    """The request was not completed in time."""

    slug = "deadline_exceeded"


class Internal(VoiceCloneError):
    """The server failed."""

    slug = "internal"


class ConnectionFailed(VoiceCloneError):
    """The server cannot be reached or is not ready, or the connection was lost."""

    slug = "connection_failed"


class BrokenStream(VoiceCloneError):
    """A speech lacks chunks or its end, so its audio is incomplete."""

    slug = "broken_stream"


class Incomplete(VoiceCloneError):
    """All chunks of a speech came, but the model missed the end of the text, so the speech is not whole.

    Args:
        finish_reason: how it ended; None if the server did not say so.
        characters: up to where the text was read, if that is known.
    """

    slug = "incomplete"

    def __init__(self, finish_reason: str | None, characters: int | None = None) -> None:
        how = _MISSED_ENDS.get(finish_reason or "", f"it ended with {finish_reason or 'no reason'}")
        place = "" if characters is None else f"; it came to character {characters} of the text"
        late = finish_reason == "text_timeout"
        hint = "Write the text without long pauses, or end it" if late else "Another seed may help, or a shorter text"
        super().__init__(f"the speech is not whole: {how}{place}. {hint}")
        self.finish_reason = finish_reason
        self.characters = characters


_MISSED_ENDS = {
    "budget": "the model did not end within the frames that a text of this length is granted",
    "runaway": "the model repeated itself instead of ending",
    "text_left": "the model ended before it had read all of the text",
    "text_timeout": "the rest of its text did not come in time",
}

_CLASSES = {error.slug: error for error in VoiceCloneError.__subclasses__()}
_PREFIXES = re.compile(r"\A(in ensemble '[^']*', *)+")  # fault: repeated-prefix
_UNKNOWN_MODEL = re.compile(r"Request for unknown model: '(.*)' is not found", re.DOTALL)  # Triton's own message
_INPUT = re.compile(r"\binput '(\w+)'")  # what others of its messages name

# The messages of Triton and gRPC themselves have no slug. The status code determines their class, except for these
# texts: Triton has no code for the first, and the errors of a stream have none.
_BY_TEXT: tuple[tuple[str, type[VoiceCloneError]], ...] = (
    ("protocol is restricted", PermissionDenied),
    ("has no available versions", ConnectionFailed),  # the model is not loaded yet, or not any more
    ("Server is stopping", ConnectionFailed),
    ("Server not ready", ConnectionFailed),
    ("Channel closed!", Cancelled),  # gRPC's text for calls of a closed client
)
_BY_STATUS: dict[str, type[VoiceCloneError]] = {
    "INVALID_ARGUMENT": InvalidArgument,  # e.g. a tensor of a wrong shape
    "NOT_FOUND": Unsupported,  # Triton knows no such model
    "UNIMPLEMENTED": Unsupported,
    "UNAVAILABLE": ConnectionFailed,
    "CANCELLED": ConnectionFailed,  # by a server that stops; a speech that this client closes is handled elsewhere
    "DEADLINE_EXCEEDED": DeadlineExceeded,
}


_PYTHON = {"model_type": "model", "deadline_ms": "deadline", "x-voice-token": "token"}
"""The names of the server's inputs, options and parameters in this client, where they differ."""

Error = TypeVar("Error", bound=VoiceCloneError)


def renamed(error: Error, names: Mapping[str, str]) -> Error:
    """The same error for a caller that has other names for these parameters."""
    error.args = (messages.renamed(error.text, names),)
    error._field = names.get(error._field or "", error._field or "") or None
    return error


def from_status(status: str, details: str) -> VoiceCloneError:
    """The error of a failed call.

    Args:
        status: name of the gRPC status code, `NOT_FOUND`.
        details: its message; what Triton put in front of it is removed.
    """
    found = messages.split(details)
    if found is not None:
        slug, text = found
        return renamed(_CLASSES[slug](text), _PYTHON)
    if status == "DEADLINE_EXCEEDED":
        return DeadlineExceeded("the server did not answer in time")
    if "is not healthy" in details:  # Triton's text for a model whose process has died
        return Overloaded("a model of this server has died, and the server starts again; try again later")
    text = _PREFIXES.sub("", details.strip()) or f"the call failed with status {status}"
    unknown = _UNKNOWN_MODEL.search(text)
    text = f"this server has no model {unknown[1]}" if unknown else _INPUT.sub(r"input '`\1`'", text)
    by_status = _BY_STATUS.get(status, Internal)
    error = next((error for part, error in _BY_TEXT if part in details), by_status)
    if error is ConnectionFailed:
        text = (
            "the server cannot be reached or is not ready; is the url host:port of its gRPC endpoint, "
            f"and is TLS on at both ends or at none? ({text})"
        )
    failed = error(text)
    failed._field = "model" if unknown else error._field
    return failed
