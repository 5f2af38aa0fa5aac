"""Which calls may be made once more at another server."""

from __future__ import annotations

from typing import Any

from .. import requests
from ..errors import ConnectionFailed, Overloaded, VoiceCloneError, from_status

# In Triton's and gRPC's own words: the call was refused, or never sent.
_NOT_BEGUN = (
    "failed to connect",
    "connections to all backends failing",
    "Server is stopping",
    "Server not ready",
    "has no available versions",
)
_CHANGES = (*(b"upload", b"delete", b"import", b"record_consent", b"keep_dictionary", b"set_alias"),)
"""Operations that must not happen twice."""


def changes(request: Any) -> bool:
    """Whether a ModelInferRequest changes voices."""
    if request.model_name != requests.CACHE:
        return False
    names = [each.name for each in request.inputs]
    return request.raw_input_contents[names.index("operation")][4:] in _CHANGES


def may_repeat(error: VoiceCloneError, changes: bool = False) -> bool:
    """Whether another server may be asked after this error. A change whose answer was lost may have been made."""
    if isinstance(error, ConnectionFailed):
        return not changes or any(text in str(error) for text in _NOT_BEGUN)
    return isinstance(error, Overloaded)


def error_in(message: Any) -> VoiceCloneError | None:
    """Return the error that a ModelStreamInferResponse carries, if the call may be repeated."""
    if not message.error_message:
        return None
    error = from_status("INVALID_ARGUMENT", message.error_message)
    return error if may_repeat(error) else None
