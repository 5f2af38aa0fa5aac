"""Text and voice to the talker's prompt: a `voice_clone.stages.protocols.PromptStage`. Needs no torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tools.example_family.config import ChirpConfig, load_config
from tools.example_family.family import CARD
from tools.example_family.prompt import TEXT, TIMBRE, TRANSCRIPT, check_timbre
from voice_clone.errors import InvalidArgument
from voice_clone.settings import PromptSettings, Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import Prepared
from voice_clone.stages.requests import check_options, refuse_language, refuse_speaker_embedding

Bytes = NDArray[np.uint8]


class ChirpPrompt:
    """The prompt stage of a checkpoint.

    Args:
        max_bytes: of a text, and of a transcript.
    """

    appends = False
    presets = ()
    voiceless = False

    def __init__(self, config: ChirpConfig, max_bytes: int) -> None:
        self._config = config
        self._max_bytes = max_bytes

    def draft(self, speech: SpeechRequest) -> Bytes:
        """The text as bytes."""
        refuse_speaker_embedding(speech)
        refuse_language(speech)
        check_options(CARD, speech.options)
        return self._bytes("text", speech.text)

    def prepare(self, speech: SpeechRequest, draft: Bytes, voice: ResolvedVoice | None) -> Prepared:
        """The tensors that `ChirpTalkerStage.plan` reads."""
        assert voice is not None  # `draft` has refused a speaker embedding
        assert voice.transcript is not None  # the one mode needs it
        timbre = voice.artifacts[TIMBRE]
        check_timbre(timbre, self._config.timbre_size)
        transcript = self._bytes("reference_text", voice.transcript)
        info = {"mode": voice.mode, "text_bytes": len(draft), "timbre_rows": len(timbre)}
        return Prepared({TIMBRE: timbre, TRANSCRIPT: transcript, TEXT: draft}, info)

    def _bytes(self, name: str, text: str) -> Bytes:
        encoded = np.frombuffer(text.encode(), np.uint8)
        if len(encoded) > self._max_bytes:
            raise InvalidArgument(f"{name} has {len(encoded)} bytes; at most {self._max_bytes} are allowed, split it")
        return encoded


def load_prompt(given: Settings) -> ChirpPrompt:
    """The prompt stage as the settings ask for it."""
    settings = PromptSettings.of(given)
    return ChirpPrompt(load_config(settings.checkpoint_dir), settings.max_text_tokens)
