"""What the talker is asked to say, in whose voice. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.example_family.config import ChirpConfig, load_config
from tools.example_family.family import CARD
from voice_clone.errors import InvalidArgument
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.prompt import CardPrompt
from voice_clone.stages.protocols import Prepared

TIMBRE, TRANSCRIPT, TEXT = "timbre", "transcript", "text"


@dataclass(frozen=True, eq=False)
class Prompt:
    """One synthesis request for the talker.

    Attributes:
        timbre: float16 [rows, timbre size].
        transcript, text: uint8 [n], UTF-8.
        vibrato: 0 is none.
        breath: breathe in before the first word.
    """

    timbre: NDArray[np.float16]
    transcript: NDArray[np.uint8]
    text: NDArray[np.uint8]
    vibrato: float = 0.0
    breath: bool = False

    def check(self, config: ChirpConfig) -> None:
        """Check a prompt against the checkpoint.

        Raises:
            InvalidArgument: a type, a shape or a value is wrong.
        """
        check_timbre(self.timbre, config.timbre_size)
        for name in (TRANSCRIPT, TEXT):
            array = getattr(self, name)
            if array.dtype != np.uint8 or array.ndim != 1 or array.size == 0:
                raise InvalidArgument(f"prompt: {name} must be UINT8 [bytes] and not empty")


def check_timbre(timbre: NDArray[Any], size: int) -> None:
    """
    Raises:
        InvalidArgument: it is no float16 [rows, size] of finite numbers.
    """
    if timbre.dtype != np.float16 or timbre.ndim != 2 or timbre.shape[1] != size or len(timbre) == 0:
        raise InvalidArgument(f"timbre must be FP16 [rows, {size}] with at least one row")
    if not np.isfinite(timbre).all():
        raise InvalidArgument("timbre must be finite; it holds NaN or infinity")


Bytes = NDArray[np.uint8]


def read(folder: Path) -> tuple[ChirpConfig, None]:
    """The configuration of the checkpoint in `folder`, which has no tokenizer."""
    return load_config(folder), None


class ChirpPrompt(CardPrompt[ChirpConfig, None, Bytes]):
    """The prompt stage of a checkpoint; a token is a byte."""

    card, read = CARD, staticmethod(read)

    def draft(self, speech: SpeechRequest) -> Bytes:
        """The text as bytes."""
        self.check(speech)
        return self._bytes("text", speech.text)

    def prepare(self, speech: SpeechRequest, draft: Bytes, voice: ResolvedVoice | None) -> Prepared:
        assert voice is not None  # `draft` has refused a speaker embedding
        assert voice.transcript is not None  # the one mode needs it
        timbre = voice.artifacts[TIMBRE]
        check_timbre(timbre, self.config.timbre_size)
        transcript = self.reference_ids(voice.transcript)
        info = {"mode": voice.mode, "text_bytes": len(draft), "timbre_rows": len(timbre)}
        return Prepared({TIMBRE: timbre, TRANSCRIPT: transcript, TEXT: draft}, info)

    def reference_ids(self, transcript: str) -> Bytes:  # type: ignore[override]
        return self._bytes("reference_text", transcript)

    def _bytes(self, name: str, text: str) -> Bytes:
        encoded = np.frombuffer(text.encode(), np.uint8)
        if len(encoded) > self.max_tokens:
            raise InvalidArgument(f"{name} has {len(encoded)} bytes; at most {self.max_tokens} are allowed, split it")
        return encoded


load_prompt = ChirpPrompt.load
