"""Text and voice to the talker's prompt: a `voice_clone.stages.protocols.PromptStage`. Needs no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import Unsupported
from voice_clone.families.voxtral.config import NO_ENCODER, VoxtralConfig, has_encoder
from voice_clone.families.voxtral.family import CARD
from voice_clone.families.voxtral.prompt import CODES, NO_PRESET
from voice_clone.families.voxtral.text import Tokenizer, read
from voice_clone.settings import PromptSettings, Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.prompt import CardPrompt, frames_of
from voice_clone.stages.protocols import Prepared
from voice_clone.stages.text import Ids


class VoxtralPrompt(CardPrompt[VoxtralConfig, Tokenizer, Ids]):
    """The prompt stage of a checkpoint.

    Attributes:
        clones: whether the checkpoint has encoder weights.
    """

    card, read = CARD, staticmethod(read)
    clones = True

    @classmethod
    def load(cls, given: Settings) -> VoxtralPrompt:
        stage = super().load(given)
        stage.presets = stage.config.presets
        stage.clones = has_encoder(PromptSettings.of(given).checkpoint_dir)
        return stage

    def check(self, speech: SpeechRequest) -> None:
        if not self.clones and (speech.speaker_embedding is not None or speech.x_vector_only):
            raise Unsupported(NO_ENCODER)  # to give a clip instead would not help
        super().check(speech)

    def reference_ids(self, transcript: str) -> Ids:
        """None: the talker does not read it."""
        return np.zeros(0, np.int32)

    def prepare(self, speech: SpeechRequest, draft: Ids, voice: ResolvedVoice | None) -> Prepared:
        width = self.config.codebooks
        preset, codes = NO_PRESET, np.zeros((0, width), np.uint16)
        if voice is None:
            assert speech.voice is not None  # `draft` has refused a speaker embedding
            preset = self.presets.index(speech.voice)
        else:
            codes = frames_of(voice, CODES, width)
        tensors: dict[str, NDArray[Any]] = {
            "before_voice": self.tokenizer.before_voice,
            "text_ids": draft,
            "preset": np.array([preset], np.int32),
            CODES: codes,
        }
        mode = "preset" if voice is None else voice.mode
        return Prepared(tensors, {"mode": mode, "text_tokens": len(draft), "reference_frames": len(codes)})


load_prompt = VoxtralPrompt.load
