"""Appends: the pieces of a text that is written while it is spoken, as requests to the family's talker."""

from __future__ import annotations

import json
import secrets
from typing import Any

from tritonclient.grpc import InferResult

from .. import _requests
from ..errors import Unsupported, from_status

MOST = 256  # characters of a piece: they never have more tokens than the server takes at once
RETRY_SECONDS = 0.2  # after the server has said that too much of the text is unread


def new_id() -> str:
    """The id of a speech whose text is appended."""
    return secrets.token_hex(16)


class Pieces:
    """A text as the pieces that are sent: each holds what was written while the one before was on its way.

    Args:
        stream_id: of the speech.
    """

    def __init__(self, stream_id: str) -> None:
        self._id = stream_id
        self._written = ""
        self._ended = False
        self._index = -1
        self._sent_last = False

    def write(self, text: str) -> None:
        """More of the text."""
        self._written += text

    def end(self) -> None:
        """That was all of it."""
        self._ended = True

    @property
    def waiting(self) -> bool:
        """Whether there is a piece to send."""
        return bool(self._written) or (self._ended and not self._sent_last)

    @property
    def done(self) -> bool:
        """Whether the last one was taken out."""
        return self._sent_last

    def next(self, family: str) -> Any:
        """The request of the next piece, which is taken out.

        Raises:
            InvalidArgument: it is no text that can be sent.
        """
        text, self._written = self._written[:MOST], self._written[MOST:]
        self._index += 1
        self._sent_last = self._ended and not self._written
        inputs = {"append": self._id, "text": text, "index": self._index, "last": self._sent_last}
        return _requests.infer(f"{family}_talker", inputs)


def still_taken(message: Any) -> bool:
    """Whether the stream takes more text after this answer, a ModelStreamInferResponse; an empty one says nothing.

    Raises:
        VoiceCloneError: the piece was refused.
    """
    if "unexpected inference input" in message.error_message:  # Triton's words for a talker that takes no appends
        raise Unsupported("this model needs the whole text before it speaks")
    if message.error_message:
        raise from_status("INVALID_ARGUMENT", message.error_message)
    info = InferResult(message.infer_response).as_numpy("info") if message.infer_response.outputs else None
    return info is None or json.loads(info[0])["state"] in ("pending", "open")
