"""The prompt to speech tokens: a `voice_clone.stages.protocols.TalkerStage`. A frame is one speech token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from voice_clone.array_kinds import Numbers
from voice_clone.autoregressive.code_head import CodeHead, FirstCode
from voice_clone.autoregressive.native_first_code import NativeRepetitionAwareFirstCode
from voice_clone.autoregressive.native_parts import NativeParts
from voice_clone.autoregressive.repetition_rule import RepetitionRule
from voice_clone.autoregressive.sampling import FILTER_FIRST_VARIANTS, NUCLEUS
from voice_clone.autoregressive.stack.protocol import Stack, StackConfig
from voice_clone.autoregressive.talker import Pauses, Prefix, TalkerRequest
from voice_clone.autoregressive.whole_prompt import WholePrompts
from voice_clone.families.cosyvoice3.config import (
    ALIGN,
    CODES,
    FRAME_RATE,
    MEL,
    MEL_FRAMES,
    SPEAKER,
    SPEECH_IDS,
    START,
    TASK,
    TOKENS,
    TalkerConfig,
    stream_chunks,
    tokens_before_alignment,
)
from voice_clone.families.cosyvoice3.family import CARD
from voice_clone.families.cosyvoice3.prompt import Clip, Prompt, Tokenizer, read
from voice_clone.lru_cache import digest
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.talker import CardTalker

if TYPE_CHECKING:  # native code does without torch
    from voice_clone.families.cosyvoice3.networks.talker import TalkerNetwork

REPETITION = RepetitionRule(NUCLEUS, window=10, first_frame=True, exclude=True, temperature=None, top_k=0, top_p=1.0)
"""A code among the latest ten is drawn again among all others."""


def layout(config: TalkerConfig) -> StackConfig:
    """Of the decoder stack: Qwen2."""
    return StackConfig.of(config, qk_norm=False, qkv_bias=True)


class Talker(WholePrompts[Prompt]):
    """The talker, of tensors or of arrays.

    Args:
        config: of the checkpoint.
        stack: of torch, or native.
        words, speech: tables of the embeddings of text tokens and of speech tokens.
        logits: of hidden states.
        first: draws a code.

    Attributes:
        head: a `CodeHead`. Each id from `CODES` on ends speech.
    """

    def __init__(
        self,
        config: TalkerConfig,
        stack: Stack,
        words: Numbers,
        speech: Numbers,
        logits: Callable[[Numbers], Numbers],
        first: FirstCode,
    ) -> None:
        self.config, self.stack = config, stack
        self._words, self._speech = words, speech
        self.head = CodeHead(
            end_code=CODES,
            vocabulary=SPEECH_IDS,
            logits=logits,
            first=first,
            graph_variants=FILTER_FIRST_VARIANTS,
            recent=REPETITION.recent,
            draws=2,  # one for the second draw
        )

    def prompt_length(self, prompt: Prompt) -> int:
        return self._prefix_length(prompt) + len(prompt.text_ids) + 1 + len(prompt.heard_tokens)

    def prefix(self, prompt: Prompt) -> Prefix:
        return Prefix(digest(prompt.prefix_ids), self._prefix_length(prompt))

    def prompt_rows(self, prompt: Prompt) -> list[Numbers]:
        words = np.concatenate([prompt.prefix_ids, prompt.text_ids])
        speech = np.concatenate([[TASK], prompt.heard_tokens]).astype(np.int32)
        start = self.rows_of(self._speech, np.array([START], np.int32))
        return [start, self.rows_of(self._words, words), self.rows_of(self._speech, speech)]

    def embed_frames(self, payload: Numbers) -> Numbers:
        """Codes int64 [N, 1] -> [N, C]."""
        return self.embed(self._speech, payload[:, 0])

    def _prefix_length(self, prompt: Prompt) -> int:
        return 1 + len(prompt.prefix_ids)


def native_talker(config: TalkerConfig, tokenizer: Tokenizer, parts: NativeParts) -> Talker:
    """The talker as native code."""
    size = config.hidden_size
    speech, words = (SPEECH_IDS, size), (config.vocab_size, size)
    return Talker(
        config,
        parts.stack("model", layout(config)),
        parts.read("model.embed_tokens.weight", words),
        parts.read("speech.speech_embedding.weight", speech),
        parts.head("head", SPEECH_IDS, lambda: parts.read("speech.llm_decoder.weight", speech)),
        NativeRepetitionAwareFirstCode(SPEECH_IDS, CODES, REPETITION),
    )


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

    card, prompt, places, rate = CARD, Prompt, PARTS, FRAME_RATE
    read, native_talker = staticmethod(read), staticmethod(native_talker)

    @classmethod
    def network(cls, config: TalkerConfig, tokenizer: Tokenizer) -> TalkerNetwork:
        from voice_clone.families.cosyvoice3.networks.talker import TalkerNetwork

        return TalkerNetwork(config)

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
