"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tools.example_family.config import BYTES, ChirpConfig
from tools.example_family.family import CARD
from tools.example_family.prompt import TIMBRE, Prompt, read
from voice_clone.autoregressive.code_head import CodeHead
from voice_clone.autoregressive.first_code import TorchFirstCode
from voice_clone.autoregressive.samplers import Draw
from voice_clone.autoregressive.sampling import CodeDraws, OneSampling
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.kv_cache import KVCache
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.talker import Prefix, TalkerInput, TalkerRequest
from voice_clone.layers.fused import empty_table
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.requests import check_plan
from voice_clone.stages.talker import PlainTalker

TEXT_MARK, BREATH_MARK, START_MARK = BYTES, BYTES + 1, BYTES + 2  # rows of the table behind those of the bytes


class ChirpTalker(nn.Module):
    """Layers, tables and heads."""

    min_frames = 0

    def __init__(self, config: ChirpConfig) -> None:
        super().__init__()
        talker, sizes = config.talker, config.codebook_sizes
        self.config = config
        self.codebooks = len(sizes)
        self.stack = DecoderStack(StackConfig.of(talker, qk_norm=False, qkv_bias=True))
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


class ChirpTalkerStage(PlainTalker[ChirpConfig, None, Prompt]):
    """The talker of a checkpoint."""

    card, prompt, talker = CARD, Prompt, ChirpTalker
    places = (TalkerPart(place="", prefix="talker.", layers=()),)
    read = staticmethod(read)

    @classmethod
    def frame_rate(cls, config: ChirpConfig) -> float:
        return 1 / config.frame_seconds

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[Prompt]]:
        """A stream of the prompt that `ChirpPrompt` has made."""
        check_plan(CARD, tensors, knobs, options)
        read = {name: tensors[name] for name in CARD.prompt}
        prompt = Prompt(**read, **{"vibrato": 0.0, "breath": False, **options})  # type: ignore[arg-type]
        prompt.check(self.config)
        defaults = self.config.sampling
        given = {name: knobs.get(name, getattr(defaults, name)) for name in CARD.knobs}
        max_frames = knobs.get("max_frames", defaults.max_frames)
        sampling = OneSampling(seed=knobs["seed"], **given)
        request = TalkerRequest(prompt, sampling, max_frames, budgeted="max_frames" not in knobs)
        context = np.zeros((0, len(self.config.codebook_sizes)), np.int32)  # no reference is decoded
        return StreamPlan(request, context, voice={TIMBRE: prompt.timbre})

    def example(self, reference_frames: int, max_frames: int) -> TalkerRequest[Prompt]:
        """A request of zeros, for the warm-up."""
        rows = max(1, min(reference_frames, self.source.max_length - max_frames - 32))
        timbre = np.zeros((rows, self.config.timbre_size), np.float16)
        prompt = Prompt(timbre, np.zeros(8, np.uint8), np.zeros(8, np.uint8), breath=True)
        # top_p below 1 takes the longest way through the sampler.
        return TalkerRequest(prompt, OneSampling(seed=0, top_p=0.9), max_frames)


load_network, load_talker = ChirpTalkerStage.load_network, ChirpTalkerStage.load
