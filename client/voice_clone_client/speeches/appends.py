"""Appends: the pieces of a part's text, as requests to the family's talker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tritonclient.grpc import InferResult
from voice_clone_text.parts import Part

from .. import requests
from ..errors import InvalidArgument, Unsupported, from_status

MOST = 256  # characters of a piece: they never have more tokens than the server takes at once
RETRY_SECONDS = 0.2  # after the server has said that too much of the text is unread, or too many texts are open


def checked(piece: object) -> str:
    """A piece of text from a caller's iterator.

    Raises:
        InvalidArgument: it is no text.
    """
    if not isinstance(piece, str):
        raise InvalidArgument(f"a piece of text must be a string, not {type(piece).__name__}")
    return piece


class Pieces:
    """The text of a part as the pieces that are sent: each holds what was written while the one before was on its way.

    Args:
        part: that is spoken.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        self._sent = 0
        self._index = -1
        self._sent_last = False

    @property
    def waiting(self) -> bool:
        """Whether there is a piece to send."""
        return self._sent < len(self._part.text) or (self._part.ended and not self._sent_last)

    @property
    def done(self) -> bool:
        """Whether the last one was taken out."""
        return self._sent_last

    def next(self, family: str) -> Any:
        """The request of the next piece, which is taken out.

        Raises:
            InvalidArgument: it is no text that can be sent.
        """
        text = self._part.text[self._sent : self._sent + MOST]
        self._sent += len(text)
        self._index += 1
        self._sent_last = self._part.ended and self._sent == len(self._part.text)
        inputs = {"append": self._part.id, "text": text, "index": self._index, "last": self._sent_last}
        return requests.infer(f"{family}_talker", inputs)


def answer(message: Any) -> Mapping[str, Any] | None:
    """What a ModelStreamInferResponse says of a piece; None: nothing.

    Raises:
        VoiceCloneError: the piece was refused.
    """
    if "unexpected inference input" in message.error_message:  # Triton's words for a talker that takes no appends
        raise Unsupported("this model needs the whole text before it speaks")
    if message.error_message:
        raise from_status("INVALID_ARGUMENT", message.error_message)
    info = InferResult(message.infer_response).as_numpy("info") if message.infer_response.outputs else None
    said: Mapping[str, Any] | None = None if info is None else json.loads(info[0])
    return said


def takes_more(said: Mapping[str, Any]) -> bool:
    """Whether more text is taken after this answer."""
    return said["state"] in ("pending", "open")
