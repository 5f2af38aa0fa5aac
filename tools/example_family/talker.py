"""Chirp's talker in torch: a `voice_clone.autoregressive.talker.Talker`.

Its prompt is timbre, transcript, a mark, text, a mark. Codebook 0 comes from the hidden state, each further codebook
from the hidden state and the codes before it, without a transformer of its own. Vibrato is added to each frame.

Shapes: B streams, N frames, K codebooks, C hidden size.
"""

from __future__ import annotations

import hashlib
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn

from tools.example_family.config import BYTES, ChirpConfig
from tools.example_family.prompt import Prompt
from voice_clone.autoregressive.code_head import CodeHead
from voice_clone.autoregressive.first_code import TorchFirstCode
from voice_clone.autoregressive.samplers import Draw
from voice_clone.autoregressive.sampling import CodeDraws
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.kv_cache import KVCache
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.talker import Prefix, TalkerInput
from voice_clone.layers.fused import empty_table

TEXT_MARK, BREATH_MARK, START_MARK = BYTES, BYTES + 1, BYTES + 2  # rows of the table behind those of the bytes


class ChirpTalker(nn.Module):
    """Layers, tables and heads."""

    min_frames = 0

    def __init__(self, config: ChirpConfig) -> None:
        super().__init__()
        talker, sizes = config.talker, config.codebook_sizes
        self.config = config
        self.codebooks = len(sizes)
        self.stack = DecoderStack(
            StackConfig.of(talker, qk_norm=False, qkv_bias=True, rope="interleaved", window=talker.window)
        )
        self.timbre = nn.Linear(config.timbre_size, talker.hidden_size)
        self.bytes = empty_table(START_MARK + 1, talker.hidden_size)
        self.vibrato = nn.Parameter(torch.empty(talker.hidden_size))
        rows = [sizes[0] + 1, *sizes[1:]]
        self.codes = empty_table(sum(rows), talker.hidden_size)  # of all codebooks, one after the other
        self._first_rows = [0, *accumulate(rows[:-1])]
        self.heads = nn.ModuleList(nn.Linear(talker.hidden_size, size, bias=False) for size in rows)
        self.head = CodeHead(
            end_code=sizes[0],
            vocabulary=rows[0],
            logits=self.heads[0],
            first=TorchFirstCode(np.zeros(rows[0], np.bool_), sizes[0]),
            predictor=self,
            embed=lambda code0: self.codes(code0),
            codebooks=len(sizes),
        )

    def check(self, prompt: Prompt) -> None:
        prompt.check(self.config)

    def prompt_length(self, prompt: Prompt) -> int:
        return len(prompt.timbre) + len(prompt.transcript) + 1 + len(prompt.text) + 1 + prompt.breath

    def prefix(self, prompt: Prompt) -> Prefix:
        digest = hashlib.sha256(np.array(prompt.timbre.shape).tobytes())
        digest.update(prompt.timbre.tobytes() + prompt.transcript.tobytes())
        return Prefix(digest.digest(), len(prompt.timbre) + len(prompt.transcript) + 1)

    def embed_prompt(self, prompt: Prompt) -> TalkerInput:
        like = self.stack.like
        timbre = torch.from_numpy(prompt.timbre.astype(np.float32)).to(like.device, like.dtype)
        marks = [BREATH_MARK, START_MARK] if prompt.breath else [START_MARK]
        ids = [*prompt.transcript.tolist(), TEXT_MARK, *prompt.text.tolist(), *marks]
        embeds = torch.cat([self.timbre(timbre), self.bytes(torch.tensor(ids, device=like.device))])
        return TalkerInput(embeds, embeds[:0], prompt.vibrato * self.vibrato)

    def embed_frames(self, codes: Tensor) -> Tensor:
        rows: Tensor = self.codes(codes + torch.tensor(self._first_rows, device=codes.device))
        return rows.sum(1)

    def new_memory(self, slots: int) -> None:
        return None

    def complete(
        self, cache: KVCache | None, hidden: Tensor, code0: Tensor, embed0: Tensor, draws: CodeDraws
    ) -> tuple[Tensor, Tensor]:
        draw = Draw(draws)
        codes = [code0]
        for book in range(1, self.codebooks):
            hidden = hidden + self.codes(codes[-1] + self._first_rows[book - 1])
            codes.append(draw(self.heads[book](hidden), book))
        return torch.stack(codes, dim=1), draw.finite()
