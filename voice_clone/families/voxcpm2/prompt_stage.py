"""Text and voice to the talker's prompt: a `voice_clone.stages.protocols.PromptStage`. Needs no torch.

The mode says what the talker hears of the voice. `reference`: a clip in it. `continuation`: a clip and its transcript,
with which its speech begins. `ref_continuation`: both. Without the option `mode` it is the last one for a voice that
has a transcript, and the first one otherwise. Without a voice the model speaks in one that the style describes, or in
any; `info` then calls the mode `zero_shot`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import InvalidArgument
from voice_clone.families.voxcpm2.audio_vae_config import PROMPT_LATENTS, REFERENCE_LATENTS, WIDTH
from voice_clone.families.voxcpm2.config import VoxCPM2Config
from voice_clone.families.voxcpm2.family import CARD
from voice_clone.families.voxcpm2.options import CONTINUATION, MODE, REF_CONTINUATION, REFERENCE, STYLE, check_together
from voice_clone.families.voxcpm2.text import Tokenizer, read, target
from voice_clone.request_fields import SOURCES
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.prompt import CardPrompt, frames_of
from voice_clone.stages.protocols import Prepared, check_reference
from voice_clone.stages.text import Ids

TARGET_TOKENS = "target_tokens"
Latents = NDArray[Any]
ZERO_SHOT = "zero_shot"  # no mode that can be asked for: there is no voice


@dataclass(frozen=True, eq=False)
class Draft:
    """What is known before the voice is.

    Attributes:
        target: what is said, with a style before it.
        target_ids: int32 [n], its tokens.
        mode: one of `MODES`; None: the best one that the voice has.
    """

    target: str
    target_ids: Ids
    mode: str | None


class VoxCPM2Prompt(CardPrompt[VoxCPM2Config, Tokenizer, Draft]):
    """The prompt stage of a checkpoint."""

    card, read = CARD, staticmethod(read)

    def draft(self, speech: SpeechRequest) -> Draft:
        """The mode that is asked for, and the tokens of the text."""
        self.check(speech)
        check_together(speech.options)
        style = speech.options.get(STYLE)
        if MODE in speech.options and not any(getattr(speech, each) is not None for each in SOURCES):
            raise InvalidArgument(
                f"`options.{MODE}` says what is heard of a voice; give a `voice` or `reference_audio`, or leave it out"
            )
        mode = REFERENCE if style is not None else speech.options.get(MODE)
        if mode == REFERENCE and speech.x_vector_only is False:
            name = MODE if style is None else STYLE
            raise InvalidArgument(
                f"with `options.{name}` the voice is not cloned in context; leave out either it or `x_vector_only`"
            )
        if mode in (CONTINUATION, REF_CONTINUATION) and speech.reference_audio is not None:
            _need_transcript(mode, speech.reference_text)
        text = target(speech.text, style)
        return Draft(text, self.text_ids(text), mode)

    def prepare(self, speech: SpeechRequest, draft: Draft, voice: ResolvedVoice | None) -> Prepared:
        if voice is None:
            nothing = np.zeros((0, WIDTH), np.float32)
            return self._prepared(ZERO_SHOT, draft, draft.target_ids, nothing, nothing)
        reference, prompt = (frames_of(voice, each.name, WIDTH) for each in CARD.artifacts)
        for latents in (reference, prompt):
            check_reference(len(latents), self.max_reference_frames)
        mode = draft.mode or (REFERENCE if voice.transcript is None or not len(prompt) else REF_CONTINUATION)
        ids = draft.target_ids
        if mode == REFERENCE:
            prompt = prompt[:0]
        else:
            transcript = _need_transcript(mode, voice.transcript if len(prompt) else None)
            self.reference_ids(transcript)  # refuses a long one
            ids = self.tokenizer.joined_ids(transcript, draft.target)
        if mode == CONTINUATION:
            reference = reference[:0]
        return self._prepared(mode, draft, ids, reference, prompt)

    @staticmethod
    def _prepared(mode: str, draft: Draft, ids: Ids, reference: Latents, prompt: Latents) -> Prepared:
        tensors: dict[str, NDArray[Any]] = {
            "text_ids": ids,
            TARGET_TOKENS: np.array([len(draft.target_ids)], np.int32),
            REFERENCE_LATENTS: reference,
            PROMPT_LATENTS: prompt,
        }
        info = {
            "mode": mode,
            "text_tokens": len(ids),
            "reference_frames": len(reference),
            "prompt_frames": len(prompt),
        }
        return Prepared(tensors, info)


def _need_transcript(mode: str, transcript: str | None) -> str:
    if transcript is None:
        raise InvalidArgument(
            f"`options.{MODE} {mode}` needs the clip's transcript, and this voice has none; give `reference_text` with "
            f"the clip, or use `options.{MODE} {REFERENCE}`"
        )
    return transcript


load_prompt = VoxCPM2Prompt.load
