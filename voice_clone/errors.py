"""The error tree. Every failure that a caller may see is one of these.

    VoiceCloneError
    ├── InvalidArgument     invalid_argument    the request is wrong; it says what would be right
    ├── SpeakerNotFound     speaker_not_found   no voice of that name
    ├── StreamNotFound      stream_not_found    no speech of that text_stream
    ├── SpeakerExists       speaker_exists      the name is taken, and replace was not said
    ├── NameReserved        name_reserved       the operator means another voice by the name
    ├── PermissionDenied    permission_denied   the request lacks the token that it needs
    ├── QuotaExceeded       quota_exceeded      the owner has as many voices as it may have
    ├── Unsupported         unsupported         this checkpoint or server cannot do it
    │   └── CheckpointError                     a checkpoint folder that cannot be served
    ├── Overloaded          overloaded          a queue or the store is full; try again later
    ├── Cancelled           cancelled           the client went away
    ├── DeadlineExceeded    deadline_exceeded   not done in time
    └── Internal            internal            anything else; the detail is in the log only

A message on the wire is `<slug>: <text>`. The slug is the stable part: Triton turns every code into
INTERNAL over BLS and HTTP cannot distinguish ALREADY_EXISTS from INVALID_ARG, so the class of an error is read
back from its slug (`from_message`), never from its code (fault: lost-codes).

A text has the names of inputs, options and parameters in backquotes, alone or with a value: `reference_text`,
`x_vector_only false`, and `options.style` for an option of a family. So an interface can put its own names there: the
command says --text. The first name is the field that is wrong. All that a caller sent goes through `quoted`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

NO_TORCH = "which is not installed here; install this package with its extra torch"
MAX_MESSAGE = 1000  # characters: a status message of gRPC travels in a header, and these are bounded
MAX_QUOTED = 100  # characters of what a caller sent, so that what would be right has room, too


class VoiceCloneError(Exception):
    """Base of all errors; `str(error)` is the text for people, without slug and backquotes."""

    slug = "internal"
    code = "INTERNAL"  # name of the constant in pb_utils.TritonError

    @property
    def text(self) -> str:
        """The text with the names in backquotes."""
        return str(self.args[0])

    def __str__(self) -> str:
        return self.text.replace("`", "")

    @property
    def message(self) -> str:
        """The text as it travels: `<slug>: <text>`, cut if it is too long; valid UTF-8."""
        message = printable(f"{self.slug}: {self.text}")
        return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 4] + " ..."

    def renamed(self, names: Mapping[str, str]) -> VoiceCloneError:
        """The same error for a caller that has other names for these inputs."""
        return type(self)(
            _NAME.sub(lambda found: f"`{names[found[1]]}{found[2]}`" if found[1] in names else found[0], self.text)
        )


class InvalidArgument(VoiceCloneError):
    """The request is wrong."""

    slug = "invalid_argument"
    code = "INVALID_ARG"


class SpeakerNotFound(VoiceCloneError):
    """No voice of that name is registered."""

    slug = "speaker_not_found"
    code = "NOT_FOUND"


class StreamNotFound(VoiceCloneError):
    """There is no speech whose text could be appended to."""

    slug = "stream_not_found"
    code = "NOT_FOUND"


class SpeakerExists(VoiceCloneError):
    """The name is taken, and the request does not say `replace`, or the voice is another owner's."""

    slug = "speaker_exists"
    code = "ALREADY_EXISTS"


class NameReserved(VoiceCloneError):
    """The owner may not register a voice of this name: the operator means another one by it."""

    slug = "name_reserved"
    code = "ALREADY_EXISTS"


class PermissionDenied(VoiceCloneError):
    """The request does not carry the token that its operation needs. Triton has no code for this."""

    slug = "permission_denied"
    code = "INVALID_ARG"


class QuotaExceeded(VoiceCloneError):
    """The owner has as many voices as it may have."""

    slug = "quota_exceeded"
    code = "UNAVAILABLE"


class Unsupported(VoiceCloneError):
    """The checkpoint or the server cannot do what was asked."""

    slug = "unsupported"
    code = "UNSUPPORTED"


class CheckpointError(Unsupported):
    """A checkpoint folder cannot be served; names the file and the tensor or key."""


class Overloaded(VoiceCloneError):
    """A bounded queue or the store is full."""

    slug = "overloaded"
    code = "UNAVAILABLE"


class Cancelled(VoiceCloneError):
    """The client cancelled the request or went away."""

    slug = "cancelled"
    code = "CANCELLED"


class DeadlineExceeded(VoiceCloneError):
    """The request was not done within its deadline."""

    slug = "deadline_exceeded"
    code = "UNAVAILABLE"


class Internal(VoiceCloneError):
    """Anything else. Its text for the caller is generic; the cause goes to the log."""


def quoted(value: object) -> str:
    """What a caller sent, in quotes and without backquotes; the beginning of it if it is long."""
    text = repr(value[:MAX_QUOTED] if isinstance(value, str) else value).replace("`", r"\x60")
    return text if len(text) <= MAX_QUOTED else f"{text[: MAX_QUOTED - 3]}..."


def listed(names: Iterable[str], last: str = ", ") -> str:
    """Names in backquotes."""
    first = [f"`{name}`" for name in names]
    return last.join([", ".join(first[:-1]), *first[-1:]]) if len(first) > 1 else "".join(first)


def printable(text: str) -> str:
    """`text` as any receiver can take it: lone surrogates, which no encoding has, and NUL become escapes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


_BY_SLUG = {cls.slug: cls for cls in VoiceCloneError.__subclasses__()}
_NAME = re.compile(r"(?:the (?:option |parameter )?)?`([a-z][\w.-]*)((?: [^`]+)?)`")
_SLUG = re.compile(rf"\b({'|'.join(_BY_SLUG)}): (.*)", re.DOTALL)


def from_message(message: str) -> VoiceCloneError:
    """The error that `message` carries, whatever Triton put in front of its slug."""
    found = _SLUG.search(message)
    if found is None:
        return Internal("the server failed to handle the request")
    return _BY_SLUG[found.group(1)](found.group(2).strip())
