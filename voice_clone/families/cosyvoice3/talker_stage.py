"""The prompt to speech tokens: a `voice_clone.stages.protocols.TalkerStage`. A frame is one speech token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from voice_clone.autoregressive.talker import Pauses, TalkerRequest
from voice_clone.families.cosyvoice3.config import (
    ALIGN,
    FRAME_RATE,
    MEL,
    MEL_FRAMES,
    SPEAKER,
    TOKENS,
    TalkerConfig,
    stream_chunks,
    tokens_before_alignment,
)
from voice_clone.families.cosyvoice3.family import CARD
from voice_clone.families.cosyvoice3.networks.talker import Talker, use_native_code
from voice_clone.families.cosyvoice3.prompt import Clip, Prompt
from voice_clone.families.cosyvoice3.text import Tokenizer, read
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.talker import CardTalker

CLIP = (TOKENS, MEL, SPEAKER)
PARTS = (
    TalkerPart(  # a prompt needs a few rows of the table
        place="model.", prefix="llm.model.model.", layers=("layers.",), in_file=("embed_tokens.weight",)
    ),
    TalkerPart(place="speech.", prefix="", layers=(), in_file_on_cpu=("speech_embedding.weight",)),
)
LEAST_PER_TOKEN = 2  # frames of each token of the text, before which speech does not end
PAUSES = Pauses(frozenset({1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323}), most=5)
"""Silences and breaths; 0.2 s of them are heard."""


class CosyVoice3Talker(CardTalker[TalkerConfig, Tokenizer, Prompt]):
    """The talker of a checkpoint. Without `do_sample` its repetition-aware sampling plays no part."""

    card, prompt, talker, places, rate = CARD, Prompt, Talker, PARTS, FRAME_RATE
    read, native_code = staticmethod(read), staticmethod(use_native_code)

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[Prompt]]:
        """With the clip for the decoder, and a schedule that suits its length."""
        request = self.request(tensors, knobs, options)
        least = LEAST_PER_TOKEN * len(request.prompt.text_ids)
        clip = Clip(**{name: tensors[name] for name in CLIP})
        cut = tokens_before_alignment(len(clip.speech_tokens)) if options.get(ALIGN) else 0
        context = clip.speech_tokens[cut:, None]
        voice: Arrays = {MEL: clip.mel[MEL_FRAMES * cut :], SPEAKER: clip.speaker}
        request = replace(request, min_frames=least, pauses=PAUSES)
        return StreamPlan(request, context, voice, chunk_frames=stream_chunks(len(context)))

    def prompt_of(self, transcript: str, artifacts: Artifacts) -> Prompt:
        return Prompt(self.tokenizer.reference_ids(transcript), self.tokenizer.text_ids("a"), artifacts[TOKENS])


load_network, load_talker = CosyVoice3Talker.load_network, CosyVoice3Talker.load
