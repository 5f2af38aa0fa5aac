"""What the torch and the native talker share: sizes, and how a prompt is read."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from voice_clone.autoregressive.first_code import RECENT_CODES
from voice_clone.autoregressive.sampling import UNHEATED_KINDS
from voice_clone.autoregressive.stack.decoder_stack import Stack
from voice_clone.autoregressive.talker import Prefix, TalkerInput
from voice_clone.families.fish_speech.config import FishSpeechConfig
from voice_clone.families.fish_speech.prompt import Prompt
from voice_clone.layers.graphs import to_device
from voice_clone.lru_cache import digest


class PromptReader(ABC):
    """A talker as far as it depends on the configuration and on the tables of embeddings alone.

    Codes of codebook 0 are numbered from 0 on, not as tokens; the code after the last one is the end of speech.
    """

    config: FishSpeechConfig
    min_frames = 0
    recent_codes = RECENT_CODES
    kinds = UNHEATED_KINDS

    @property
    @abstractmethod
    def stack(self) -> Stack:
        """The decoder stack."""

    @property
    @abstractmethod
    def token_table(self) -> Tensor:
        """The embeddings of all tokens [tokens, C]; of any dtype, on any device."""

    @abstractmethod
    def embed_frames(self, codes: Tensor) -> Tensor:
        """Codec frames, int64 [N, K] -> [N, C]."""

    @property
    def codebooks(self) -> int:
        return self.config.codebooks

    @property
    def draws(self) -> int:
        return self.config.codebooks + 1  # one for the second draw of codebook 0

    @property
    def vocabulary(self) -> int:
        return self.config.semantic_codes + 1

    @property
    def end_code(self) -> int:
        return self.config.semantic_codes

    def check(self, prompt: Prompt) -> None:
        prompt.check(self.config)

    def prompt_length(self, prompt: Prompt) -> int:
        return len(prompt.reference_ids) + len(prompt.reference_codes) + len(prompt.text_ids)

    def prefix(self, prompt: Prompt) -> Prefix:
        key = digest(prompt.reference_ids, prompt.reference_codes)
        return Prefix(key, len(prompt.reference_ids) + len(prompt.reference_codes))

    @torch.inference_mode()
    def embed_prompt(self, prompt: Prompt) -> TalkerInput:
        like = self.stack.like
        codes = to_device(torch.from_numpy(prompt.reference_codes.astype(np.int64)), like.device)
        parts = [self._embed_tokens(prompt.reference_ids), self.embed_frames(codes)]
        embeds = torch.cat([*parts, self._embed_tokens(prompt.text_ids)])
        return TalkerInput(embeds, embeds[:0], torch.zeros_like(embeds[0]))

    def _embed_tokens(self, ids: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> Tensor:
        """Only the rows that are needed are moved from the table, which may stay in the checkpoint's file."""
        table, like = self.token_table, self.stack.like
        rows = F.embedding(to_device(torch.from_numpy(ids.astype(np.int64)), table.device), table)
        return to_device(rows, like.device, like.dtype)


def code_rows(table: Tensor, config: FishSpeechConfig, end_token: int) -> Tensor:
    """The rows of the token table that codes of codebook 0 and the end of speech have: [V, C], a copy."""
    first = config.semantic_start_token_id
    return torch.cat([table[first : first + config.semantic_codes], table[end_token : end_token + 1]])
