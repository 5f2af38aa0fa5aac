"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.code_head import CodeHead
from voice_clone.autoregressive.first_code import RepetitionAwareFirstCode
from voice_clone.autoregressive.native_first_code import NativeRepetitionAwareFirstCode
from voice_clone.autoregressive.native_predictor import NativePredictor, packed_heads
from voice_clone.autoregressive.predictor_by_step import PredictorByStep
from voice_clone.autoregressive.repetition_rule import RepetitionRule
from voice_clone.autoregressive.sampling import FILTER_FIRST_VARIANTS, FILTERS_FIRST
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.native_stack import add_embeddings
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.stack.to_native import Load, layer_loader, native_stack
from voice_clone.autoregressive.talker import Prefix
from voice_clone.autoregressive.talker_module import TalkerModule
from voice_clone.families.fish_speech.checkpoint import FAST, SLOW, Checkpoint
from voice_clone.families.fish_speech.config import FRAME_RATE, FishSpeechConfig, TransformerConfig
from voice_clone.families.fish_speech.family import CARD
from voice_clone.families.fish_speech.text import CODES, Prompt, Tokenizer, read
from voice_clone.layers.fused import empty_table
from voice_clone.layers.graphs import CachedOnGpu, to_device
from voice_clone.lru_cache import digest
from voice_clone.native.matrix.linear_module import NativeLinear
from voice_clone.native.matrix.weights import as_array, head_precision, pack
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.settings import Precision
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.talker import CardTalker

# As fish-speech draws codebook 0.
REPETITION = RepetitionRule(
    FILTERS_FIRST, window=10, first_frame=False, exclude=False, temperature=1.0, top_k=None, top_p=0.9
)


def _stack(sizes: TransformerConfig, common: TransformerConfig) -> StackConfig:
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


class SlowTransformer(DecoderStack):
    """Predicts codebook 0, one frame a step; its table of tokens is its head, too."""

    def __init__(self, config: FishSpeechConfig) -> None:
        super().__init__(_stack(config.text_config, config.text_config))
        self.embeddings = empty_table(config.text_config.vocab_size, config.text_config.dim)


class FastTransformer(PredictorByStep, DecoderStack):
    """Predicts the other codebooks of a frame. A `voice_clone.autoregressive.code_head.CodePredictor`.

    Attributes:
        embeddings: of a code at a position of this transformer, one table for all codebooks.
        codebook_embeddings: of the codes of each codebook at a position of the slow transformer.
        output: the head, one for all codebooks; only the first rows' codes exist.
    """

    def __init__(self, config: FishSpeechConfig) -> None:
        DecoderStack.__init__(self, _stack(config.audio_decoder_config, config.text_config))
        size = config.audio_decoder_config.dim
        self.codebooks = config.codebooks
        self.codes = config.code_limits[1]
        self.embeddings = empty_table(config.semantic_codes, size)
        self.codebook_embeddings = empty_table(config.semantic_codes * config.codebooks, size)
        self.output: nn.Module = nn.Linear(size, config.semantic_codes, bias=False)

    @property
    def stack(self) -> DecoderStack:
        return self

    def project(self, x: Tensor) -> Tensor:
        return x

    def logits(self, hidden: Tensor, book: int) -> Tensor:
        found: Tensor = self.output(hidden)
        return found[..., : self.codes]

    def embed(self, codes: Tensor, book: int = 1) -> Tensor:
        rows: Tensor = self.embeddings(codes)
        return rows.to(self.norm.weight.dtype)


class Talker(TalkerModule[Prompt]):
    """Both transformers.

    Args:
        end_token: the token that ends speech.

    Attributes:
        head: a `CodeHead`.
        embed_frames: the token's and the K codes' embeddings, added and scaled: int64 [N, K] -> [N, C].
    """

    layers = "slow"
    config: FishSpeechConfig

    def __init__(self, config: FishSpeechConfig, end_token: int) -> None:
        super().__init__(config)
        self._end_token = end_token
        self.slow = SlowTransformer(config)
        self.fast = FastTransformer(config)
        self.embed_frames: Callable[[Tensor], Tensor] = self._embed_frames
        self._starts: CachedOnGpu[Tensor] = CachedOnGpu()  # of the codebooks' tables, each a row
        self._code_rows: Tensor | None = None  # made when it is first needed: the weights are loaded then
        self.head = CodeHead(
            end_code=config.semantic_codes,
            vocabulary=config.semantic_codes + 1,
            logits=self._logits,
            first=RepetitionAwareFirstCode(config.semantic_codes, REPETITION),
            predictor=self.fast,
            embed=self.embed_first,
            codebooks=config.codebooks,
            kind=FILTERS_FIRST,
            graph_variants=FILTER_FIRST_VARIANTS,
            recent=REPETITION.recent,
            draws=config.codebooks + 1,  # one for the second draw of codebook 0
        )

    @property
    def token_table(self) -> Tensor:
        """The embeddings of all tokens [tokens, C]; of any dtype, on any device."""
        return self.slow.embeddings.weight

    @property
    def code_rows(self) -> Tensor:
        """Embeddings of the codes of codebook 0 and of the end of speech, and its head: [V, C], a copy."""
        if self._code_rows is None:
            table, first, end = self.token_table.detach(), self.config.semantic_start_token_id, self._end_token
            rows = torch.cat([table[first : first + self.config.semantic_codes], table[end : end + 1]])
            self._code_rows = rows.to(self.stack.like.device, self.stack.like.dtype)
        return self._code_rows

    def prompt_length(self, prompt: Prompt) -> int:
        return len(prompt.reference_ids) + len(prompt.reference_codes) + len(prompt.text_ids)

    def prefix(self, prompt: Prompt) -> Prefix:
        key = digest(prompt.reference_ids, prompt.reference_codes)
        return Prefix(key, len(prompt.reference_ids) + len(prompt.reference_codes))

    def prompt_rows(self, prompt: Prompt) -> list[Tensor]:
        codes = to_device(torch.from_numpy(prompt.reference_codes.astype(np.int64)), self.stack.like.device)
        before, behind = (self.rows_of(self.token_table, ids) for ids in (prompt.reference_ids, prompt.text_ids))
        return [before, self.embed_frames(codes), behind]

    def embed_first(self, code0: Tensor) -> Tensor:
        """Codes of codebook 0 as the fast transformer takes them: int64 [B] -> [B, C of the fast transformer].

        A row that has just ended is computed, too, and not used.
        """
        return self.fast.embed(code0.clamp(max=self.head.end_code - 1))

    def _embed_frames(self, codes: Tensor) -> Tensor:
        starts = self._starts.get(
            self.fast.codebook_embeddings.weight,
            lambda: torch.arange(self.config.codebooks, device=codes.device) * self.config.semantic_codes,
        )
        others = self.fast.codebook_embeddings(codes + starts).to(self.stack.like.dtype).sum(1)
        rows: Tensor = (F.embedding(codes[:, 0], self.code_rows) + others) / math.sqrt(self.config.codebooks + 1)
        return rows

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.code_rows)


def use_native_code(
    talker: Talker, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
) -> Talker:
    """Replace the layers, heads and samplers of a talker by native code: a `UseNativeCode`."""
    config, head, fast = talker.config, talker.head, talker.fast
    rows = talker.code_rows
    table, codebooks = as_array(rows), as_array(fast.codebook_embeddings.weight.detach())
    head.logits = NativeLinear(pack(rows, head_precision(precision)), len(rows))
    talker.native_stack = native_stack(talker.slow, precision, layer_loader(load, "slow"), packed.part("slow"))
    output = fast.output.weight
    assert isinstance(output, Tensor)
    head.predictor = NativePredictor(
        native_stack(fast, precision, layer_loader(load, "fast"), packed.part("fast")),
        packed_heads(lambda: [output.detach()[: fast.codes]], precision, packed.part("output")),
        fast.codes,
        as_array(fast.embeddings.weight.detach())[None],
        config.codebooks,
    )
    del fast.output  # it is packed
    packed.keep()
    head.first = NativeRepetitionAwareFirstCode(head.vocabulary, head.end_code, REPETITION)

    def embed_frames(codes: Tensor) -> Tensor:
        repeated = torch.cat([codes[:, :1], codes], dim=1).contiguous()  # the token, then each codebook's code
        found = np.empty((len(codes), table.shape[1]), np.float32)
        add_embeddings(table, codebooks, config.semantic_codes, repeated.numpy(), found)
        return torch.from_numpy(found) / math.sqrt(config.codebooks + 1)

    talker.embed_frames = embed_frames
    return talker


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
    """The talker of a checkpoint."""

    card, prompt, files, places, rate = CARD, Prompt, Checkpoint, PARTS, FRAME_RATE
    read, native_code = staticmethod(read), staticmethod(use_native_code)

    @classmethod
    def network(cls, config: FishSpeechConfig, tokenizer: Tokenizer) -> Talker:
        return Talker(config, tokenizer.end_token)

    def prompt_of(self, transcript: str, artifacts: Artifacts) -> Prompt:
        ids = self.tokenizer.reference_ids(transcript)
        return Prompt(ids, artifacts[CODES], self.tokenizer.text_ids("a"))


load_network, load_talker = FishSpeechTalker.load_network, FishSpeechTalker.load
