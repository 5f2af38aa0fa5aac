"""Text and voice to the talker's prompt: a `voice_clone.stages.protocols.PromptStage`. Needs no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tools.example_family.config import ChirpConfig, load_config
from tools.example_family.family import CARD
from tools.example_family.prompt import TEXT, TIMBRE, TRANSCRIPT, check_timbre
from voice_clone.errors import InvalidArgument
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.prompt import CardPrompt
from voice_clone.stages.protocols import Prepared

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
