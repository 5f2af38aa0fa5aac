"""The talker: a Qwen3 transformer that predicts codebook 0 of the next codec frame.

qwen-tts 0.1.1, `modeling_qwen3_tts.py` (`Qwen3TTSTalkerForConditionalGeneration`). Its interleaved multimodal RoPE
(Qwen2-VL, Wang et al. 2024) picks, for each rotary dimension, one of three position axes. Here no image or video
exists and all three axes hold the same position, so the result is plain RoPE. Attribute names equal the official tensor
names below `talker.`.

It is made of torch's modules, for a GPU; native_talker.py has the one for a CPU.

Shapes: B streams, N frames or tokens, K codebooks, C hidden size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.code_head import CodeHead
from voice_clone.autoregressive.first_code import TorchFirstCode
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.protocol import Stack, StackConfig
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig, TalkerConfig
from voice_clone.families.qwen3_tts.networks.code_predictor import CodePredictor
from voice_clone.families.qwen3_tts.networks.prompt_reader import PromptReader, suppressed_ids
from voice_clone.layers.fused import empty_table
from voice_clone.layers.graphs import table_rows, to_device

ROWS_AT_ONCE = 32  # text tokens that are projected together on a GPU


class TextProjection(nn.Module):
    """Text embedding size -> hidden size."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.text_hidden_size, config.text_hidden_size)
        self.linear_fc2 = nn.Linear(config.text_hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[N, text size] -> [N, C].

        A product of torch rounds by its number of rows. So each has the same number here: a text that comes piece by
        piece gets the rows that it gets as a whole.
        """
        size = 1 if x.device.type == "cpu" else ROWS_AT_ONCE
        padded = F.pad(x, (0, 0, 0, -len(x) % size))
        return torch.cat([self.project(piece) for piece in torch.split(padded, size)])[: len(x)]

    def project(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out


class TalkerModel(DecoderStack):
    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(StackConfig.of(config))
        self.codec_embedding = empty_table(config.vocab_size, config.hidden_size)
        self.text_embedding = empty_table(config.text_vocab_size, config.text_hidden_size)


class Talker(PromptReader, nn.Module):
    """Talker and, below it, the code predictor: a `voice_clone.autoregressive.talker.Talker`.

    Attributes:
        head: a `CodeHead`.
    """

    def __init__(self, config: Qwen3TTSConfig) -> None:
        nn.Module.__init__(self)
        self.config = config
        talker = config.talker
        self.model = TalkerModel(talker)
        self.text_projection = TextProjection(talker)
        self.codec_head = nn.Linear(talker.hidden_size, talker.vocab_size, bias=False)
        self.code_predictor = CodePredictor(talker)
        self.head = CodeHead(
            end_code=talker.codec_eos_token_id,
            vocabulary=talker.vocab_size,
            logits=self._logits,
            first=TorchFirstCode(suppressed_ids(talker), talker.codec_eos_token_id),
            predictor=self.code_predictor,
            embed=self.embed_codec_tokens,
            codebooks=talker.num_code_groups,
        )

    @property
    def stack(self) -> Stack:
        return self.model

    def numbers(self, array: npt.NDArray[Any]) -> Tensor:
        like = self.model.like
        values = torch.from_numpy(array)
        return to_device(values, like.device, like.dtype if values.is_floating_point() else None)

    def embed_codec_tokens(self, ids: Tensor) -> Tensor:
        rows: Tensor = self.model.codec_embedding(ids)
        return rows

    def embed_text(self, ids: npt.NDArray[np.integer[Any]]) -> Tensor:
        projected: Tensor = self.text_projection(table_rows(self.model.text_embedding.weight, ids, self.model.like))
        return projected

    def embed_frames(self, codes: Tensor) -> Tensor:
        first = self.model.codec_embedding(codes[:, :1])
        return torch.cat([first, self.code_predictor.embed(codes[:, 1:])], dim=1).sum(1)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.codec_head(hidden)
        return logits
