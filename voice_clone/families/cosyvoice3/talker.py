"""The prompt to speech tokens: a `voice_clone.stages.protocols.TalkerStage`. A frame is one speech token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.code_head import CodeHead
from voice_clone.autoregressive.first_code import RepetitionAwareFirstCode
from voice_clone.autoregressive.native_first_code import NativeRepetitionAwareFirstCode
from voice_clone.autoregressive.repetition_rule import RepetitionRule
from voice_clone.autoregressive.sampling import FILTER_FIRST_VARIANTS, NUCLEUS
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.stack.to_native import Load, layer_loader, native_stack
from voice_clone.autoregressive.talker import Pauses, Prefix, TalkerRequest
from voice_clone.autoregressive.talker_module import TalkerModule
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
from voice_clone.families.cosyvoice3.text import Clip, Prompt, Tokenizer, read
from voice_clone.layers.fused import empty_table
from voice_clone.lru_cache import digest
from voice_clone.native.matrix.linear_module import NativeLinear
from voice_clone.native.matrix.weights import head_precision, pack
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.settings import Precision
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.talker import CardTalker

REPETITION = RepetitionRule(NUCLEUS, window=10, first_frame=True, exclude=True, temperature=None, top_k=0, top_p=1.0)
"""A code among the latest ten is drawn again among all others."""


class Qwen2(DecoderStack):
    """Qwen2's layers with the table of text tokens."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(StackConfig.of(config, qk_norm=False, qkv_bias=True))
        self.embed_tokens = empty_table(config.vocab_size, config.hidden_size)


class Speech(nn.Module):
    """The table of speech tokens, and their head."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.speech_embedding = empty_table(SPEECH_IDS, size)
        self.llm_decoder = nn.Linear(size, SPEECH_IDS, bias=False)


class Talker(TalkerModule[Prompt]):
    """Layers, tables and head.

    Attributes:
        head: a `CodeHead`. Each id from `CODES` on ends speech.
    """

    layers = "model"

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(config)
        self.model = Qwen2(config)
        self.speech = Speech(config.hidden_size)
        self.head = CodeHead(
            end_code=CODES,
            vocabulary=SPEECH_IDS,
            logits=self._logits,
            first=RepetitionAwareFirstCode(CODES, REPETITION),
            graph_variants=FILTER_FIRST_VARIANTS,
            recent=REPETITION.recent,
            draws=2,  # one for the second draw
        )

    def prompt_length(self, prompt: Prompt) -> int:
        return self._prefix_length(prompt) + len(prompt.text_ids) + 1 + len(prompt.heard_tokens)

    def prefix(self, prompt: Prompt) -> Prefix:
        return Prefix(digest(prompt.prefix_ids), self._prefix_length(prompt))

    def prompt_rows(self, prompt: Prompt) -> list[Tensor]:
        words = np.concatenate([prompt.prefix_ids, prompt.text_ids])
        speech, table = np.concatenate([[TASK], prompt.heard_tokens]).astype(np.int32), self.speech.speech_embedding
        start = self.rows_of(table.weight, np.array([START], np.int32))
        return [start, self.rows_of(self.model.embed_tokens.weight, words), self.rows_of(table.weight, speech)]

    def embed_frames(self, payload: Tensor) -> Tensor:
        """Codes int64 [N, 1] -> [N, C]."""
        return F.embedding(payload[:, 0], self.speech.speech_embedding.weight).to(self.stack.like.dtype)

    def _prefix_length(self, prompt: Prompt) -> int:
        return 1 + len(prompt.prefix_ids)

    def _logits(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.speech.llm_decoder(hidden)
        return found


def use_native_code(
    talker: Talker, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
) -> Talker:
    """Replace the layers, the head and the sampler of a talker by native code: a `UseNativeCode`."""
    head = talker.head
    head.logits = NativeLinear(pack(talker.speech.llm_decoder.weight.detach(), head_precision(precision)), SPEECH_IDS)
    del talker.speech.llm_decoder  # it is packed
    talker.native_stack = native_stack(talker.model, precision, layer_loader(load, "model"), packed.part("model"))
    packed.keep()
    head.first = NativeRepetitionAwareFirstCode(SPEECH_IDS, CODES, REPETITION)
    return talker


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
