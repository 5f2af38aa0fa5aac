"""Text and voice to the talker's prompt: a `voice_clone.stages.protocols.PromptStage`. Needs no torch."""

from __future__ import annotations

from voice_clone.errors import Internal, InvalidArgument
from voice_clone.families.fish_speech.config import FishSpeechConfig, load_config
from voice_clone.families.fish_speech.family import CARD
from voice_clone.families.fish_speech.prompt import CODES
from voice_clone.families.fish_speech.text import Tokenizer
from voice_clone.settings import PromptSettings, Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import Prepared
from voice_clone.stages.requests import check_options, refuse_language, refuse_speaker_embedding
from voice_clone.stages.text import Ids, limited_ids


class FishSpeechPrompt:
    """The prompt stage of a checkpoint.

    Args:
        max_tokens: of a text, and of a transcript, with the tokens around it; longer ones are refused.
    """

    appends = CARD.appends
    presets = ()
    voiceless = CARD.voiceless

    def __init__(self, config: FishSpeechConfig, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def draft(self, speech: SpeechRequest) -> Ids:
        """The tokens of the text."""
        refuse_speaker_embedding(speech)
        refuse_language(speech)
        check_options(CARD, speech.options)
        if speech.reference_audio is not None and speech.reference_text is None:
            raise InvalidArgument("this model needs `reference_text`, the words spoken in `reference_audio`")
        if speech.reference_text is not None:
            self._reference_ids(speech.reference_text)  # refused before its clip is encoded
        return limited_ids("text", speech.text, self._tokenizer.text_ids, self._max_tokens)

    def prepare(self, speech: SpeechRequest, draft: Ids, voice: ResolvedVoice | None) -> Prepared:
        """The tensors that `FishSpeechTalker.plan` reads."""
        assert voice is not None  # `draft` has refused a speaker embedding
        assert voice.transcript is not None  # the one mode needs it
        codes = voice.artifacts[CODES]
        if codes.ndim != 2 or codes.shape[1] != self._config.codebooks:
            raise Internal("the artifacts of this voice belong to another checkpoint")
        reference_ids = self._reference_ids(voice.transcript)
        info = {
            "mode": voice.mode,
            "text_tokens": len(draft),
            "reference_tokens": len(reference_ids),
            "reference_frames": len(codes),
        }
        return Prepared({"reference_ids": reference_ids, "reference_codes": codes, "text_ids": draft}, info)

    def _reference_ids(self, transcript: str) -> Ids:
        return limited_ids("reference_text", transcript, self._tokenizer.reference_ids, self._max_tokens)


def load_prompt(given: Settings) -> FishSpeechPrompt:
    """The prompt stage as the settings ask for it."""
    settings = PromptSettings.of(given)
    config = load_config(settings.checkpoint_dir)
    tokenizer = Tokenizer(settings.checkpoint_dir, config)
    return FishSpeechPrompt(config, tokenizer, settings.max_text_tokens)
