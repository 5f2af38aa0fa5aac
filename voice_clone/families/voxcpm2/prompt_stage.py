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

from voice_clone.errors import Internal, InvalidArgument
from voice_clone.families.voxcpm2.audio_vae_config import PROMPT_LATENTS, REFERENCE_LATENTS, WIDTH
from voice_clone.families.voxcpm2.config import load_config
from voice_clone.families.voxcpm2.family import CARD
from voice_clone.families.voxcpm2.options import CONTINUATION, MODE, REF_CONTINUATION, REFERENCE, STYLE, check_together
from voice_clone.families.voxcpm2.text import Tokenizer, target
from voice_clone.request_fields import SOURCES
from voice_clone.settings import PromptSettings, Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import Prepared, check_reference
from voice_clone.stages.requests import check_options, refuse_language, refuse_speaker_embedding
from voice_clone.stages.text import Ids, limited_ids

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


class VoxCPM2Prompt:
    """The prompt stage of a checkpoint.

    Args:
        max_tokens: of a text with its style, and of a transcript; longer ones are refused.
        max_reference_frames: that talker and code2wav take.
    """

    appends = CARD.appends
    presets = ()
    voiceless = CARD.voiceless

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, max_reference_frames: int) -> None:
        self._tokenizer = tokenizer
        self._max_tokens, self._max_reference_frames = max_tokens, max_reference_frames

    def draft(self, speech: SpeechRequest) -> Draft:
        """The mode that is asked for, and the tokens of the text."""
        refuse_speaker_embedding(speech)
        refuse_language(speech)
        check_options(CARD, speech.options)
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
        ids = limited_ids("text", text, self._tokenizer.text_ids, self._max_tokens)
        if speech.reference_text is not None:
            self._check_transcript(speech.reference_text)  # refused before its clip is encoded
        return Draft(text, ids, mode)

    def prepare(self, speech: SpeechRequest, draft: Draft, voice: ResolvedVoice | None) -> Prepared:
        """The tensors that `VoxCPM2Talker.plan` reads."""
        if voice is None:
            nothing = np.zeros((0, WIDTH), np.float32)
            return self._prepared(ZERO_SHOT, draft, draft.target_ids, nothing, nothing)
        reference, prompt = voice.artifacts[REFERENCE_LATENTS], voice.artifacts[PROMPT_LATENTS]
        for latents in (reference, prompt):
            if latents.ndim != 2 or latents.shape[1] != WIDTH:
                raise Internal("the artifacts of this voice belong to another checkpoint")
            check_reference(len(latents), self._max_reference_frames)
        mode = draft.mode or (REFERENCE if voice.transcript is None or not len(prompt) else REF_CONTINUATION)
        ids = draft.target_ids
        if mode == REFERENCE:
            prompt = prompt[:0]
        else:
            transcript = _need_transcript(mode, voice.transcript if len(prompt) else None)
            self._check_transcript(transcript)
            ids = self._tokenizer.joined_ids(transcript, draft.target)
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

    def _check_transcript(self, transcript: str) -> None:
        limited_ids("reference_text", transcript, self._tokenizer.transcript_ids, self._max_tokens)


def _need_transcript(mode: str, transcript: str | None) -> str:
    if transcript is None:
        raise InvalidArgument(
            f"`options.{MODE} {mode}` needs the clip's transcript, and this voice has none; give `reference_text` with "
            f"the clip, or use `options.{MODE} {REFERENCE}`"
        )
    return transcript


def load_prompt(given: Settings) -> VoxCPM2Prompt:
    """The prompt stage as the settings ask for it."""
    settings = PromptSettings.of(given)
    tokenizer = Tokenizer(settings.checkpoint_dir, load_config(settings.checkpoint_dir))
    return VoxCPM2Prompt(tokenizer, settings.max_text_tokens, settings.max_chunk_frames)
