"""The talker: slow and fast transformer, a `voice_clone.autoregressive.talker.Talker`.

It is made of torch's modules; native.py replaces them on a CPU. Codes of codebook 0 are numbered from 0 on, not as
tokens; the code after the last one is the end of speech.

Shapes: B streams, N frames, K codebooks, C hidden size, V codes of codebook 0 and the end of speech.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.code_head import CodeHead
from voice_clone.autoregressive.first_code import RECENT_CODES, RepetitionAwareFirstCode
from voice_clone.autoregressive.sampling import UNHEATED_KINDS, UnheatedSampler
from voice_clone.autoregressive.stack.decoder_stack import Stack
from voice_clone.autoregressive.talker import Prefix, TalkerInput
from voice_clone.families.fish_speech.config import FishSpeechConfig
from voice_clone.families.fish_speech.networks.transformers import FastTransformer, SlowTransformer
from voice_clone.families.fish_speech.prompt import Prompt
from voice_clone.layers.graphs import CachedOnGpu, to_device
from voice_clone.lru_cache import digest


class Talker(nn.Module):
    """Both transformers.

    Args:
        end_token: the token that ends speech.

    Attributes:
        stack: of torch's layers, or the native one in their place.
        head: a `CodeHead`.
        embed_frames: the token's and the K codes' embeddings, added and scaled: int64 [N, K] -> [N, C].
    """

    min_frames = 0

    def __init__(self, config: FishSpeechConfig, end_token: int) -> None:
        super().__init__()
        self.config = config
        self._end_token = end_token
        self.slow = SlowTransformer(config)
        self.fast = FastTransformer(config)
        self.native_stack: Stack | None = None
        self.embed_frames: Callable[[Tensor], Tensor] = self._embed_frames
        self._starts: CachedOnGpu[Tensor] = CachedOnGpu()  # of the codebooks' tables, each a row
        self._code_rows: Tensor | None = None  # made when it is first needed: the weights are loaded then
        self.head = CodeHead(
            end_code=config.semantic_codes,
            vocabulary=config.semantic_codes + 1,
            logits=self._logits,
            first=RepetitionAwareFirstCode(config.semantic_codes),
            predictor=self.fast,
            embed=self.embed_first,
            codebooks=config.codebooks,
            rule=UnheatedSampler,
            kinds=UNHEATED_KINDS,
            recent=RECENT_CODES,
            draws=config.codebooks + 1,  # one for the second draw of codebook 0
        )

    @property
    def stack(self) -> Stack:
        return self.native_stack or self.slow

    @property
    def token_table(self) -> Tensor:
        """The embeddings of all tokens [tokens, C]; of any dtype, on any device."""
        return self.slow.embeddings.weight

    @property
    def code_rows(self) -> Tensor:
        """Embeddings of the codes of codebook 0, and its head: [V, C]."""
        if self._code_rows is None:
            rows, like = code_rows(self.token_table.detach(), self.config, self._end_token), self.stack.like
            self._code_rows = rows.to(like.device, like.dtype)
        return self._code_rows

    def check(self, prompt: Prompt) -> None:
        prompt.check(self.config)

    def prompt_length(self, prompt: Prompt) -> int:
        return len(prompt.reference_ids) + len(prompt.reference_codes) + len(prompt.text_ids)

    def prefix(self, prompt: Prompt) -> Prefix:
        key = digest(prompt.reference_ids, prompt.reference_codes)
        return Prefix(key, len(prompt.reference_ids) + len(prompt.reference_codes))

    @torch.inference_mode()
    def embed_prompt(self, prompt: Prompt) -> TalkerInput:
        codes = to_device(torch.from_numpy(prompt.reference_codes.astype(np.int64)), self.stack.like.device)
        parts = [self._embed_tokens(prompt.reference_ids), self.embed_frames(codes)]
        embeds = torch.cat([*parts, self._embed_tokens(prompt.text_ids)])
        return TalkerInput(embeds, embeds[:0], torch.zeros_like(embeds[0]))

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

    def _embed_tokens(self, ids: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> Tensor:
        """Only the rows that are needed are moved from the table, which may stay in the checkpoint's file."""
        table, like = self.token_table, self.stack.like
        rows = F.embedding(to_device(torch.from_numpy(ids.astype(np.int64)), table.device), table)
        return to_device(rows, like.device, like.dtype)

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.code_rows)


def code_rows(table: Tensor, config: FishSpeechConfig, end_token: int) -> Tensor:
    """The rows of the token table that codes of codebook 0 and the end of speech have: [V, C], a copy."""
    first = config.semantic_start_token_id
    return torch.cat([table[first : first + config.semantic_codes], table[end_token : end_token + 1]])
