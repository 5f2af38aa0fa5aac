"""Text and voice to the talker's prompt: a `voice_clone.stages.protocols.PromptStage`. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.support.families.chirp.config import ChirpConfig, load_config
from tests.support.families.chirp.prompt import TEXT, TIMBRE, TRANSCRIPT, check_timbre, read_options
from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.settings import CheckpointSettings, Settings, setting
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import Prepared

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
        if speech.speaker_embedding is not None or speech.x_vector_only:
            raise Unsupported(
                "this model has no speaker embedding; give a voice or reference_audio with its transcript"
            )
        if (speech.language or "auto").strip().lower() != "auto":
            raise Unsupported(f"this model cannot be told a language, got {speech.language!r}; leave it out")
        read_options(speech.options)
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


@dataclass(frozen=True, kw_only=True)
class ChirpPromptSettings(CheckpointSettings):
    """A family's stage may have settings of its own."""

    max_text_bytes: int = setting(1024, "longer texts and transcripts are refused")


def load_prompt(given: Settings) -> ChirpPrompt:
    """The prompt stage as the settings ask for it."""
    settings = ChirpPromptSettings.of(given)
    return ChirpPrompt(load_config(settings.checkpoint_dir), settings.max_text_bytes)
