"""Pieces of a text that is still written, and the answers to them."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from voice_clone.errors import InvalidArgument, VoiceCloneError

MAX_PIECE = 4096  # characters
MAX_PIECES = 100_000  # of a stream

log = logging.getLogger(__name__)

Info = dict[str, Any]


class Answer(Protocol):
    """Where the answer to a piece goes; see `Responder`."""

    def send(self, outputs: Mapping[str, Any], final: bool = False) -> None:
        """The answer."""

    def fail(self, error: BaseException) -> None:
        """The piece is refused."""


Outcomes = list[tuple[Answer, Info | VoiceCloneError]]


@dataclass(frozen=True)
class Piece:
    """A piece of a text, and whether it is the last one.

    Raises:
        InvalidArgument: on construction, if it is too long or has no index.
    """

    index: Any
    text: str
    last: bool

    def __post_init__(self) -> None:
        if not isinstance(self.index, int) or not 0 <= self.index < MAX_PIECES:
            raise InvalidArgument(f"index must be the number of the piece: 0, 1, 2, ..., below {MAX_PIECES}")
        if len(self.text) > MAX_PIECE:
            raise InvalidArgument(f"a piece has {len(self.text)} characters; at most {MAX_PIECE} are allowed, split it")

    @property
    def digest(self) -> bytes:
        """Of all but the index."""
        return hashlib.blake2b(self.text.encode() + bytes([self.last]), digest_size=16).digest()


def send(answers: Outcomes) -> None:
    """Give answers that have been found under a lock."""
    for answer, outcome in answers:
        if isinstance(outcome, VoiceCloneError):
            answer.fail(outcome)
            continue
        try:
            answer.send({"info": json.dumps(outcome)}, final=True)
        except Exception as error:
            log.error("a piece of text could not be answered", exc_info=error)
            answer.fail(error)
