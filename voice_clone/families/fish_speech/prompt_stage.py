"""Text and voice to the talker's prompt: a `voice_clone.stages.protocols.PromptStage`. Needs no torch."""

from __future__ import annotations

from voice_clone.families.fish_speech.config import FishSpeechConfig
from voice_clone.families.fish_speech.family import CARD
from voice_clone.families.fish_speech.prompt import CODES
from voice_clone.families.fish_speech.text import Tokenizer, read
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.prompt import CardPrompt, frames_of
from voice_clone.stages.protocols import Prepared
from voice_clone.stages.text import Ids


class FishSpeechPrompt(CardPrompt[FishSpeechConfig, Tokenizer, Ids]):
    """The prompt stage of a checkpoint."""

    card, read = CARD, staticmethod(read)

    def prepare(self, speech: SpeechRequest, draft: Ids, voice: ResolvedVoice | None) -> Prepared:
        assert voice is not None  # `draft` has refused a speaker embedding
        assert voice.transcript is not None  # the one mode needs it
        codes = frames_of(voice, CODES, self.config.codebooks)
        reference_ids = self.reference_ids(voice.transcript)
        info = {
            "mode": voice.mode,
            "text_tokens": len(draft),
            "reference_tokens": len(reference_ids),
            "reference_frames": len(codes),
        }
        return Prepared({"reference_ids": reference_ids, "reference_codes": codes, "text_ids": draft}, info)


load_prompt = FishSpeechPrompt.load
