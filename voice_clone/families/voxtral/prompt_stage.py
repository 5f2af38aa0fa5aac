"""Text and voice to the talker's prompt: a `voice_clone.stages.protocols.PromptStage`. Needs no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import Internal, Unsupported, quoted
from voice_clone.families.voxtral.config import NO_ENCODER, VoxtralConfig, has_encoder, load_config
from voice_clone.families.voxtral.family import CARD
from voice_clone.families.voxtral.prompt import CODES, NO_PRESET
from voice_clone.families.voxtral.text import Tokenizer
from voice_clone.settings import PromptSettings, Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest, find_language, list_languages
from voice_clone.stages.protocols import Prepared
from voice_clone.stages.requests import check_options, refuse_speaker_embedding
from voice_clone.stages.text import Ids, limited_ids

LANGUAGES = ("english", "french", "spanish", "german", "italian", "portuguese", "dutch", "arabic", "hindi")


class VoxtralPrompt:
    """The prompt stage of a checkpoint.

    Args:
        max_tokens: of a text, with the tokens around it; longer ones are refused.
        clones: whether the checkpoint has encoder weights.
    """

    appends = CARD.appends
    voiceless = CARD.voiceless

    def __init__(self, config: VoxtralConfig, tokenizer: Tokenizer, max_tokens: int, clones: bool) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._clones = clones
        self.presets = config.presets

    def draft(self, speech: SpeechRequest) -> Ids:
        """The tokens of the text."""
        if not self._clones and (speech.speaker_embedding is not None or speech.x_vector_only):
            raise Unsupported(NO_ENCODER)  # to give a clip instead would not help
        refuse_speaker_embedding(speech)
        if find_language(speech.language, ("auto", *LANGUAGES)) is None:
            raise Unsupported(
                f"this model speaks {list_languages(LANGUAGES)}; "
                f"the `language` {quoted(speech.language)} is none of them"
            )
        check_options(CARD, speech.options)
        return limited_ids("text", speech.text, self._tokenizer.text_ids, self._max_tokens)

    def prepare(self, speech: SpeechRequest, draft: Ids, voice: ResolvedVoice | None) -> Prepared:
        """The tensors that `VoxtralTalker.plan` reads."""
        width = self._config.codebooks
        preset, codes = NO_PRESET, np.zeros((0, width), np.uint16)
        if voice is None:
            assert speech.voice is not None  # `draft` has refused a speaker embedding
            preset = self.presets.index(speech.voice)
        else:
            codes = voice.artifacts[CODES]
            if codes.ndim != 2 or codes.shape[1] != width:
                raise Internal("the artifacts of this voice belong to another checkpoint")
        tensors: dict[str, NDArray[Any]] = {
            "before_voice": self._tokenizer.before_voice,
            "text_ids": draft,
            "preset": np.array([preset], np.int32),
            CODES: codes,
        }
        mode = "preset" if voice is None else voice.mode
        return Prepared(tensors, {"mode": mode, "text_tokens": len(draft), "reference_frames": len(codes)})


def load_prompt(given: Settings) -> VoxtralPrompt:
    """The prompt stage as the settings ask for it."""
    settings = PromptSettings.of(given)
    config = load_config(settings.checkpoint_dir)
    tokenizer = Tokenizer(settings.checkpoint_dir, config)
    return VoxtralPrompt(config, tokenizer, settings.max_text_tokens, has_encoder(settings.checkpoint_dir))
