"""The talker's networks in torch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.first_code import RepetitionAwareFirstCode
from voice_clone.autoregressive.predictor_by_step import PredictorByStep
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.families.fish_speech.config import FishSpeechConfig
from voice_clone.families.fish_speech.talker import REPETITION, Talker, layout
from voice_clone.layers.fused import empty_table
from voice_clone.layers.graphs import CachedOnGpu


class SlowTransformer(DecoderStack):
    """Predicts codebook 0, one frame a step; its table of tokens is its head, too."""

    def __init__(self, config: FishSpeechConfig) -> None:
        super().__init__(layout(config.text_config, config.text_config))
        self.embeddings = empty_table(config.text_config.vocab_size, config.text_config.dim)


class FastTransformer(PredictorByStep, DecoderStack):
    """Predicts the other codebooks of a frame. A `voice_clone.autoregressive.code_head.CodePredictor`.

    Attributes:
        embeddings: of a code at a position of this transformer, one table for all codebooks.
        codebook_embeddings: of the codes of each codebook at a position of the slow transformer.
        output: the head, one for all codebooks; only the first rows' codes exist.
    """

    def __init__(self, config: FishSpeechConfig) -> None:
        DecoderStack.__init__(self, layout(config.audio_decoder_config, config.text_config))
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


class TalkerNetwork(nn.Module):
    """Both transformers.

    Args:
        end_token: the token that ends speech.
    """

    def __init__(self, config: FishSpeechConfig, end_token: int) -> None:
        super().__init__()
        self.config = config
        self._end_token = end_token
        self.slow = SlowTransformer(config)
        self.fast = FastTransformer(config)
        self._starts: CachedOnGpu[Tensor] = CachedOnGpu()  # of the codebooks' tables, each a row
        self._code_rows: Tensor | None = None  # made when it is first needed: the weights are loaded then

    def talker(self) -> Talker:
        first = RepetitionAwareFirstCode(self.config.semantic_codes, REPETITION)
        table = self.slow.embeddings.weight
        return Talker(
            self.config, self.slow, table, self.embed_frames, self._logits, first, self.fast, self._embed_first
        )

    @property
    def code_rows(self) -> Tensor:
        """Embeddings of the codes of codebook 0 and of the end of speech, and its head: [V, C], a copy."""
        if self._code_rows is None:
            table, first, end = (
                self.slow.embeddings.weight.detach(),
                self.config.semantic_start_token_id,
                self._end_token,
            )
            rows = torch.cat([table[first : first + self.config.semantic_codes], table[end : end + 1]])
            self._code_rows = rows.to(self.slow.like.device, self.slow.like.dtype)
        return self._code_rows

    def embed_frames(self, codes: Tensor) -> Tensor:
        starts = self._starts.get(
            self.fast.codebook_embeddings.weight,
            lambda: torch.arange(self.config.codebooks, device=codes.device) * self.config.semantic_codes,
        )
        others = self.fast.codebook_embeddings(codes + starts).to(self.slow.like.dtype).sum(1)
        rows: Tensor = (F.embedding(codes[:, 0], self.code_rows) + others) / math.sqrt(self.config.codebooks + 1)
        return rows

    def _embed_first(self, code0: Tensor) -> Tensor:
        return self.fast.embed(code0.clamp(max=self.config.semantic_codes - 1))

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.code_rows)
