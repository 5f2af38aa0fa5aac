"""The error tree. Every failure that a caller may see is one of these.

`voice_clone_errors` has the table of their kinds, and the form of their messages. Triton turns every code into INTERNAL
over BLS, and HTTP cannot distinguish ALREADY_EXISTS from INVALID_ARG, so the class of an error is read back from its
slug (`from_message`), never from its code (fault: lost-codes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from voice_clone_errors import messages
from voice_clone_errors.kinds import BY_SLUG
from voice_clone_errors.messages import quoted as quoted

NO_TORCH = "which is not installed here; install this package with its extra torch"
NO_POCKETSPHINX = (
    "it needs pocketsphinx, which is not installed here; install this package with its extra alignment, or name a "
    "checkpoint by VOICE_CLONE_ALIGNER_CHECKPOINT_DIR"
)
MAX_MESSAGE = 1000  # characters: a status message of gRPC travels in a header, and these are bounded


class VoiceCloneError(Exception):
    """Base of all errors; `str(error)` is the text for people, without slug and backquotes."""

    slug = "internal"

    @property
    def code(self) -> str:
        """The name of the constant in pb_utils.TritonError."""
        return BY_SLUG[self.slug].code or "INTERNAL"

    @property
    def text(self) -> str:
        """The text with the names in backquotes."""
        return str(self.args[0])

    def __str__(self) -> str:
        return messages.plain(self.text)

    @property
    def message(self) -> str:
        """The text as it travels: `<slug>: <text>`, cut if it is too long; valid UTF-8."""
        message = printable(f"{self.slug}: {self.text}")
        return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 4] + " ..."

    def renamed(self, names: Mapping[str, str]) -> VoiceCloneError:
        """The same error for a caller that has other names for these inputs."""
        return type(self)(messages.renamed(self.text, names))


class InvalidArgument(VoiceCloneError):
    """The request is wrong."""

    slug = "invalid_argument"


class SpeakerNotFound(VoiceCloneError):
    """No voice of that name is registered."""

    slug = "speaker_not_found"


class StreamNotFound(VoiceCloneError):
    """There is no speech whose text could be appended to."""

    slug = "stream_not_found"


class SpeakerExists(VoiceCloneError):
    """The name is taken, and the request does not say `replace`, or the voice is another owner's."""

    slug = "speaker_exists"


class NameReserved(VoiceCloneError):
    """The owner may not register a voice of this name: the operator means another one by it."""

    slug = "name_reserved"


class PermissionDenied(VoiceCloneError):
    """The request does not carry the token that its operation needs. Triton has no code for this."""

    slug = "permission_denied"


class QuotaExceeded(VoiceCloneError):
    """The owner has as many voices as it may have."""

    slug = "quota_exceeded"


class Unsupported(VoiceCloneError):
    """The checkpoint or the server cannot do what was asked."""

    slug = "unsupported"


class CheckpointError(Unsupported):
    """A checkpoint folder cannot be served; names the file and the tensor or key."""


class Overloaded(VoiceCloneError):
    """A bounded queue or the store is full."""

    slug = "overloaded"


class Cancelled(VoiceCloneError):
    """The client cancelled the request or went away."""

    slug = "cancelled"


class DeadlineExceeded(VoiceCloneError):
    """The request was not done within its deadline."""

    slug = "deadline_exceeded"


class Internal(VoiceCloneError):
    """Anything else. Its text for the caller is generic; the cause goes to the log."""


def listed(names: Iterable[str], last: str = ", ") -> str:
    """Names in backquotes."""
    first = [f"`{name}`" for name in names]
    return last.join([", ".join(first[:-1]), *first[-1:]]) if len(first) > 1 else "".join(first)


def printable(text: str) -> str:
    """`text` as any receiver can take it: lone surrogates, which no encoding has, and NUL become escapes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


_CLASSES = {cls.slug: cls for cls in VoiceCloneError.__subclasses__()}


def from_message(message: str) -> VoiceCloneError:
    """The error that `message` carries, whatever Triton put in front of its slug."""
    found = messages.split(message)
    if found is None:
        return Internal("the server failed to handle the request")
    slug, text = found
    return _CLASSES[slug](text)
