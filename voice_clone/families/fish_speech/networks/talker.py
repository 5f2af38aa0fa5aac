"""The talker in torch: slow and fast transformer, a `voice_clone.autoregressive.talker.Talker`.

Shapes: B streams, N frames, K codebooks, C hidden size, V codes of codebook 0 and the end of speech.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.code_predictor import complete_by_steps, frame_cache
from voice_clone.autoregressive.first_code import RepetitionAwareFirstCode
from voice_clone.autoregressive.sampling import Draw, Filters, UnheatedSampler
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.kv_cache import KVCache
from voice_clone.autoregressive.steps.rows import RowTable
from voice_clone.families.fish_speech.config import FishSpeechConfig
from voice_clone.families.fish_speech.networks.prompt_reader import PromptReader, code_rows
from voice_clone.families.fish_speech.networks.transformers import FastTransformer, SlowTransformer
from voice_clone.layers.kept import KeptOnGpu


class Talker(PromptReader, nn.Module):
    """Both transformers.

    Args:
        end_token: the token that ends speech.
    """

    def __init__(self, config: FishSpeechConfig, end_token: int) -> None:
        nn.Module.__init__(self)
        self.config = config
        self._end_token = end_token
        self.slow = SlowTransformer(config)
        self.fast = FastTransformer(config)
        self._first_code = RepetitionAwareFirstCode(self.end_code)
        self._starts: KeptOnGpu[Tensor] = KeptOnGpu()  # of the codebooks' tables, each a row
        self._code_rows: Tensor | None = None  # made when it is first needed: the weights are loaded then

    @property
    def stack(self) -> DecoderStack:
        return self.slow

    @property
    def token_table(self) -> Tensor:
        return self.slow.embeddings.weight

    @property
    def code_rows(self) -> Tensor:
        """Embeddings of the codes of codebook 0, and its head: [V, C]."""
        if self._code_rows is None:
            rows, like = code_rows(self.token_table.detach(), self.config, self._end_token), self.slow.like
            self._code_rows = rows.to(like.device, like.dtype)
        return self._code_rows

    def embed_frames(self, codes: Tensor) -> Tensor:
        """The token's and the K codes' embeddings, added and scaled: int64 [N, K] -> [N, C]."""
        starts = self._starts.get(
            self.fast.codebook_embeddings.weight,
            lambda: torch.arange(self.codebooks, device=codes.device) * self.config.semantic_codes,
        )
        others = self.fast.codebook_embeddings(codes + starts).to(self.slow.like.dtype).sum(1)
        rows: Tensor = (F.embedding(codes[:, 0], self.code_rows) + others) / math.sqrt(self.codebooks + 1)
        return rows

    def head(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.code_rows)

    def first_code(self, logits: Tensor, used: Tensor, table: RowTable, filters: Filters) -> tuple[Tensor, Tensor]:
        return self._first_code(logits, used, table, filters)

    def new_frame_cache(self, slots: int) -> KVCache:
        return frame_cache(self.fast, slots)

    def complete(self, cache: KVCache | None, hidden: Tensor, code0: Tensor, draw: Draw) -> Tensor:
        assert cache is not None
        draw.rule = UnheatedSampler
        code = code0.clamp(max=self.end_code - 1)  # a row that has just ended is computed, too, and its codes not used
        codes = complete_by_steps(self.fast, cache, hidden, code, self.fast.embed(code), draw)
        return torch.cat([code0[:, None], codes[:, 1:]], dim=1)
