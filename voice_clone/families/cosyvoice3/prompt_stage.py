"""Text and voice to the talker's prompt: a `voice_clone.stages.protocols.PromptStage`. Needs no torch.

The mode says what the talker hears. `zero_shot`: the clip and its transcript, so that it speaks on as the clip does.
`cross_lingual`: nothing of the voice; its timbre comes from the decoder alone. With the option `instruct` it hears an
instruction in place of the clip, such as one to whisper, to hurry or to speak a dialect.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voice_clone.errors import Internal, InvalidArgument
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
    TalkerConfig,
)
from voice_clone.families.cosyvoice3.family import CARD
from voice_clone.families.cosyvoice3.text import Tokenizer, read
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.prompt import CardPrompt
from voice_clone.stages.protocols import Arrays, Prepared, check_reference
from voice_clone.stages.text import Ids, limited_ids


@dataclass(frozen=True, eq=False)
class Draft:
    """What is known before the voice is: tokens of the text, and of an instruction, int32 [n]; None: there is none."""

    text_ids: Ids
    instruction_ids: Ids | None


class CosyVoice3Prompt(CardPrompt[TalkerConfig, Tokenizer, Draft]):
    """The prompt stage of a checkpoint."""

    card, read = CARD, staticmethod(read)

    def draft(self, speech: SpeechRequest) -> Draft:
        """The tokens of the text and of an instruction."""
        self.check(speech)
        text_ids, instruction = self.text_ids(speech.text), speech.options.get(INSTRUCT)
        if instruction is None:
            return Draft(text_ids, None)
        if speech.x_vector_only is False:
            raise InvalidArgument(
                f"with `options.{INSTRUCT}` the voice is not cloned in context; leave out either it or `x_vector_only`"
            )
        tokenize = self.tokenizer.instruction_ids
        return Draft(text_ids, limited_ids(f"options.{INSTRUCT}", instruction, tokenize, self.max_tokens))

    def prepare(self, speech: SpeechRequest, draft: Draft, voice: ResolvedVoice | None) -> Prepared:
        assert voice is not None  # `draft` has refused a speaker embedding
        clip = aligned(voice.artifacts)
        tokens = clip[TOKENS]
        check_reference(len(tokens), self.max_reference_frames)
        if draft.instruction_ids is not None:
            mode, prefix_ids, heard = INSTRUCT, draft.instruction_ids, tokens[:0]
        elif voice.transcript is None or speech.x_vector_only:
            mode, prefix_ids, heard = CROSS_LINGUAL, self.tokenizer.reference_ids(), tokens[:0]
        else:
            mode, prefix_ids, heard = ZERO_SHOT, self.reference_ids(voice.transcript), tokens
        tensors = {"prefix_ids": prefix_ids, "text_ids": draft.text_ids, "heard_tokens": heard, **clip}
        info = {
            "mode": mode,
            "text_tokens": len(draft.text_ids),
            "reference_tokens": len(prefix_ids),
            "reference_frames": len(tokens),
        }
        return Prepared(tensors, info)


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


load_prompt = CosyVoice3Prompt.load
