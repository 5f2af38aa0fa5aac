"""Text and voice to the talker's prompt: a `voice_clone.stages.protocols.PromptStage`. Needs no torch.

The mode says what the talker hears. `zero_shot`: the clip and its transcript, so that it speaks on as the clip does.
`cross_lingual`: nothing of the voice; its timbre comes from the decoder alone. With the option `instruct` it hears an
instruction in place of the clip, such as one to whisper, to hurry or to speak a dialect.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voice_clone.errors import Internal, InvalidArgument, Unsupported
from voice_clone.families.cosyvoice3.config import (
    CROSS_LINGUAL,
    INSTRUCT,
    MEL,
    MEL_BANDS,
    MEL_FRAMES,
    SPEAKER,
    SPEAKER_SIZE,
    TOKENS,
    ZERO_SHOT,
    load_config,
)
from voice_clone.families.cosyvoice3.family import CARD
from voice_clone.families.cosyvoice3.text import Tokenizer
from voice_clone.settings import PromptSettings, Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import Arrays, Prepared, check_reference
from voice_clone.stages.requests import check_options, refuse_language
from voice_clone.stages.text import Ids, limited_ids


@dataclass(frozen=True, eq=False)
class Draft:
    """What is known before the voice is: tokens of the text, and of an instruction, int32 [n]; None: there is none."""

    text_ids: Ids
    instruction_ids: Ids | None


class CosyVoice3Prompt:
    """The prompt stage of a checkpoint.

    Args:
        max_tokens: of a text, and of what stands before it; longer ones are refused.
        max_reference_frames: that talker and code2wav take.
    """

    appends = CARD.appends
    presets = ()
    voiceless = CARD.voiceless

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, max_reference_frames: int) -> None:
        self._tokenizer = tokenizer
        self._max_tokens, self._max_reference_frames = max_tokens, max_reference_frames

    def draft(self, speech: SpeechRequest) -> Draft:
        """The tokens of the text and of an instruction."""
        if speech.speaker_embedding is not None:
            raise Unsupported("this model needs more of a voice than an embedding; give a `voice` or `reference_audio`")
        refuse_language(speech)
        check_options(CARD, speech.options)
        text_ids = limited_ids("text", speech.text, self._tokenizer.text_ids, self._max_tokens)
        if speech.reference_text is not None:
            self._transcript_ids(speech.reference_text)  # refused before its clip is encoded
        instruction = speech.options.get(INSTRUCT)
        if instruction is None:
            return Draft(text_ids, None)
        if speech.x_vector_only is False:
            raise InvalidArgument(
                f"with `options.{INSTRUCT}` the voice is not cloned in context; leave out either it or `x_vector_only`"
            )
        tokenize = self._tokenizer.instruction_ids
        return Draft(text_ids, limited_ids(f"options.{INSTRUCT}", instruction, tokenize, self._max_tokens))

    def prepare(self, speech: SpeechRequest, draft: Draft, voice: ResolvedVoice | None) -> Prepared:
        """The tensors that `CosyVoice3Talker.plan` reads."""
        assert voice is not None  # `draft` has refused a speaker embedding
        clip = aligned(voice.artifacts)
        tokens = clip[TOKENS]
        check_reference(len(tokens), self._max_reference_frames)
        if draft.instruction_ids is not None:
            mode, prefix_ids, heard = INSTRUCT, draft.instruction_ids, tokens[:0]
        elif voice.transcript is None or speech.x_vector_only:
            mode, prefix_ids, heard = CROSS_LINGUAL, self._tokenizer.prefix_ids(), tokens[:0]
        else:
            mode, prefix_ids, heard = ZERO_SHOT, self._transcript_ids(voice.transcript), tokens
        tensors = {"prefix_ids": prefix_ids, "text_ids": draft.text_ids, "heard_tokens": heard, **clip}
        info = {
            "mode": mode,
            "text_tokens": len(draft.text_ids),
            "reference_tokens": len(prefix_ids),
            "reference_frames": len(tokens),
        }
        return Prepared(tensors, info)

    def _transcript_ids(self, transcript: str) -> Ids:
        return limited_ids("reference_text", transcript, self._tokenizer.prefix_ids, self._max_tokens)


def aligned(artifacts: Arrays) -> Arrays:
    """The artifacts of a clip, its speech tokens and its mel spectrogram cut to the same length.

    The two are computed at two sample rates, whose frames do not end together.

    Raises:
        Internal: they are not those of this family.
        InvalidArgument: there is no whole token.
    """
    tokens, mel, speaker = artifacts[TOKENS], artifacts[MEL], artifacts[SPEAKER]
    if tokens.ndim != 1 or mel.shape[1:] != (MEL_BANDS,) or speaker.shape != (SPEAKER_SIZE,):
        raise Internal("the artifacts of this voice belong to another checkpoint")
    count = min(len(tokens), len(mel) // MEL_FRAMES)
    if not count:
        raise InvalidArgument("the clip of this voice is too short; give some seconds of speech")
    return {TOKENS: np.ascontiguousarray(tokens[:count]), MEL: mel[: MEL_FRAMES * count], SPEAKER: speaker}


def load_prompt(given: Settings) -> CosyVoice3Prompt:
    """The prompt stage as the settings ask for it."""
    settings = PromptSettings.of(given)
    config = load_config(settings.checkpoint_dir)
    tokenizer = Tokenizer(settings.checkpoint_dir, config)
    return CosyVoice3Prompt(tokenizer, settings.max_text_tokens, settings.max_chunk_frames)
