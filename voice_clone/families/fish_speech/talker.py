"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from voice_clone.array_kinds import Numbers
from voice_clone.autoregressive.code_head import CodeHead, CodePredictor, FirstCode
from voice_clone.autoregressive.native_first_code import NativeRepetitionAwareFirstCode
from voice_clone.autoregressive.native_parts import NativeParts
from voice_clone.autoregressive.native_predictor import NativePredictor, packed_heads
from voice_clone.autoregressive.repetition_rule import RepetitionRule
from voice_clone.autoregressive.sampling import FILTER_FIRST_VARIANTS, FILTERS_FIRST
from voice_clone.autoregressive.stack.native_stack import add_embeddings
from voice_clone.autoregressive.stack.protocol import Stack, StackConfig
from voice_clone.autoregressive.talker import Prefix
from voice_clone.autoregressive.whole_prompt import WholePrompts
from voice_clone.families.fish_speech.checkpoint import FAST, SLOW, Checkpoint
from voice_clone.families.fish_speech.config import FRAME_RATE, FishSpeechConfig, TransformerConfig
from voice_clone.families.fish_speech.family import CARD
from voice_clone.families.fish_speech.prompt import CODES, Prompt, Tokenizer, read
from voice_clone.lru_cache import digest
from voice_clone.native.arrays import Array
from voice_clone.native.matrix.weights import as_float32
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.talker import CardTalker

if TYPE_CHECKING:  # native code does without torch
    from voice_clone.families.fish_speech.talker_network import TalkerNetwork

# As fish-speech draws codebook 0.
REPETITION = RepetitionRule(
    FILTERS_FIRST, window=10, first_frame=False, exclude=False, temperature=1.0, top_k=None, top_p=0.9
)


def layout(sizes: TransformerConfig, common: TransformerConfig) -> StackConfig:
    """`common`: whose base of the rotary tables and epsilon both transformers use, as the official code does."""
    return StackConfig(
        hidden_size=sizes.dim,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.n_layer,
        num_attention_heads=sizes.n_head,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_size,
        rms_norm_eps=common.norm_eps,
        rope_theta=common.rope_base,
        qk_norm=sizes.attention_qk_norm,
        rope_in_bf16=True,
    )


class Talker(WholePrompts[Prompt]):
    """Both transformers, of tensors or of arrays.

    Args:
        config: of the checkpoint.
        stack: the slow transformer.
        table: the embeddings of all tokens [tokens, C]; of any dtype, on any device.
        embed_frames: the token's and the K codes' embeddings, added and scaled: int64 [N, K] -> [N, C].
        logits: of hidden states.
        first: draws codebook 0.
        predictor: the fast transformer.
        embed_first: codes of codebook 0 as the fast transformer takes them: int64 [B] -> [B, C of the fast
            transformer]. A row that has just ended is computed, too, and not used.

    Attributes:
        head: a `CodeHead`.
    """

    def __init__(
        self,
        config: FishSpeechConfig,
        stack: Stack,
        table: Numbers,
        embed_frames: Callable[[Numbers], Numbers],
        logits: Callable[[Numbers], Numbers],
        first: FirstCode,
        predictor: CodePredictor,
        embed_first: Callable[[Numbers], Numbers],
    ) -> None:
        self.config, self.stack, self.embed_frames = config, stack, embed_frames
        self._table = table
        self.head = CodeHead(
            end_code=config.semantic_codes,
            vocabulary=config.semantic_codes + 1,
            logits=logits,
            first=first,
            predictor=predictor,
            embed=embed_first,
            codebooks=config.codebooks,
            kind=FILTERS_FIRST,
            graph_variants=FILTER_FIRST_VARIANTS,
            recent=REPETITION.recent,
            draws=config.codebooks + 1,  # one for the second draw of codebook 0
        )

    def prompt_length(self, prompt: Prompt) -> int:
        return len(prompt.reference_ids) + len(prompt.reference_codes) + len(prompt.text_ids)

    def prefix(self, prompt: Prompt) -> Prefix:
        key = digest(prompt.reference_ids, prompt.reference_codes)
        return Prefix(key, len(prompt.reference_ids) + len(prompt.reference_codes))

    def prompt_rows(self, prompt: Prompt) -> list[Numbers]:
        codes = self.numbers(prompt.reference_codes.astype(np.int64))
        before, behind = (self.rows_of(self._table, ids) for ids in (prompt.reference_ids, prompt.text_ids))
        return [before, self.embed_frames(codes), behind]


def native_talker(config: FishSpeechConfig, tokenizer: Tokenizer, parts: NativeParts) -> Talker:
    """The talker as native code."""
    text, sizes, codes, books = config.text_config, config.audio_decoder_config, config.semantic_codes, config.codebooks
    start, end, predicted = config.semantic_start_token_id, tokenizer.end_token, config.code_limits[1]
    table = parts.read("slow.embeddings.weight", (text.vocab_size, text.dim))
    rows = as_float32(np.concatenate([table[start : start + codes], table[end : end + 1]]))
    codebooks = parts.read("fast.codebook_embeddings.weight", (codes * books, text.dim))
    embeddings = parts.read("fast.embeddings.weight", (codes, sizes.dim))

    def output() -> list[Numbers]:
        return [parts.read("fast.output.weight", (codes, sizes.dim))[:predicted]]

    def embed_frames(found: Array) -> Array:
        repeated = np.concatenate([found[:, :1], found], axis=1)  # the token, then each codebook's code
        embedded = np.empty((len(found), rows.shape[1]), np.float32)
        add_embeddings(rows, codebooks, codes, repeated, embedded)
        return embedded / np.float32(math.sqrt(books + 1))

    slow, fast = parts.stack("slow", layout(text, text)), parts.stack("fast", layout(sizes, text))
    heads = packed_heads(output, parts.precision, parts.packed.part("output"))
    return Talker(
        config,
        slow,
        table,
        embed_frames,
        parts.head("rows", len(rows), lambda: rows),
        NativeRepetitionAwareFirstCode(len(rows), codes, REPETITION),
        NativePredictor(fast, heads, predicted, embeddings[None], books),
        lambda code0: as_float32(embeddings[np.minimum(code0, codes - 1)]),
    )


PARTS = (
    # A prompt needs a few rows of the table of all tokens, a frame those of the codes, which the talker copies.
    TalkerPart(place="slow.", prefix=SLOW, layers=("layers.",), in_file=("embeddings.weight",)),
    TalkerPart(
        place="fast.",
        prefix=FAST,
        layers=("layers.",),
        in_file_on_cpu=("embeddings.weight", "codebook_embeddings.weight"),
    ),
)


class FishSpeechTalker(CardTalker[FishSpeechConfig, Tokenizer, Prompt]):
    card, prompt, files, places, rate = CARD, Prompt, Checkpoint, PARTS, FRAME_RATE
    read, native_talker = staticmethod(read), staticmethod(native_talker)

    @classmethod
    def network(cls, config: FishSpeechConfig, tokenizer: Tokenizer) -> TalkerNetwork:
        from voice_clone.families.fish_speech.talker_network import TalkerNetwork

        return TalkerNetwork(config, tokenizer.end_token)

    def prompt_of(self, transcript: str, artifacts: Artifacts) -> Prompt:
        ids = self.tokenizer.reference_ids(transcript)
        return Prompt(ids, artifacts[CODES], self.tokenizer.text_ids("a"))


load_network, load_talker = FishSpeechTalker.load_network, FishSpeechTalker.load
load_torch_network = FishSpeechTalker.load_torch_network
