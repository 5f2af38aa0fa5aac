"""The code predictor: from the talker's hidden state and codebook 0 of a frame, codebooks 1..15, one after the other.

qwen-tts 0.1.1, `modeling_qwen3_tts.py` (`Qwen3TTSTalkerCodePredictorModelForConditionalGeneration`): a small Qwen3
transformer over at most 16 positions: the hidden state, then one code a position. Each codebook has an embedding and a
head of its own. Attribute names equal the official tensor names below `talker.code_predictor.`.

Shapes: B frames, K codebooks, C the predictor's hidden size, H the talker's hidden size, V vocabulary of a codebook.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.predictor_by_step import PredictorByStep
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.families.qwen3_tts.config import TalkerConfig
from voice_clone.layers.fused import fused_tables
from voice_clone.layers.graphs import CachedOnGpu


class CodePredictorModel(DecoderStack):
    """Layers and tables; the tables of codebook 1, 2, ... have the talker's hidden size."""

    def __init__(self, talker: TalkerConfig) -> None:
        config = talker.code_predictor_config
        super().__init__(StackConfig.of(config))
        self.codec_embedding = fused_tables(
            self, "codec_embedding", config.num_code_groups - 1, config.vocab_size, talker.hidden_size
        )


class CodePredictor(PredictorByStep, nn.Module):
    """Completes frames in torch: [hidden state, code 0] -> K codes."""

    def __init__(self, talker: TalkerConfig) -> None:
        nn.Module.__init__(self)
        self.config = config = talker.code_predictor_config
        self.model = CodePredictorModel(talker)
        self.lm_head = nn.ModuleList(
            nn.Linear(config.hidden_size, config.vocab_size, bias=False) for _ in range(config.num_code_groups - 1)
        )
        self._starts: CachedOnGpu[Tensor] = CachedOnGpu()  # of the tables, each a row
        self.small_to_mtp_projection: nn.Module = nn.Identity()
        if config.hidden_size != talker.hidden_size:  # 1.7B
            self.small_to_mtp_projection = nn.Linear(talker.hidden_size, config.hidden_size)

    @property
    def stack(self) -> DecoderStack:
        return self.model

    @property
    def codebooks(self) -> int:
        return self.config.num_code_groups

    def project(self, x: Tensor) -> Tensor:
        projected: Tensor = self.small_to_mtp_projection(x)
        return projected

    def logits(self, hidden: Tensor, book: int) -> Tensor:
        found: Tensor = self.lm_head[book - 1](hidden)
        return found

    def embed(self, codes: Tensor, book: int = 1) -> Tensor:
        size, tables = self.config.vocab_size, self.model.codec_embedding.weight
        tables = tables[(book - 1) * size :]
        if codes.shape[1] > 1:
            starts = self._starts.get(tables, lambda: torch.arange(self.codebooks - 1, device=codes.device) * size)
            codes = codes + starts[: codes.shape[1]]
        return F.embedding(codes, tables).to(self.model.norm.weight.dtype)
