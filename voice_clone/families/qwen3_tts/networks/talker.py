"""The talker: a Qwen3 transformer that predicts codebook 0 of the next codec frame.

qwen-tts 0.1.1, `modeling_qwen3_tts.py` (`Qwen3TTSTalkerForConditionalGeneration`). Its interleaved multimodal RoPE
(Qwen2-VL, Wang et al. 2024) picks, for each rotary dimension, one of three position axes. Here no image or video
exists and all three axes hold the same position, so the result is plain RoPE. Attribute names equal the official tensor
names below `talker.`.

It is made of torch's modules; native.py replaces them on a CPU.

Shapes: B streams, N frames or tokens, K codebooks, C hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.code_head import CodeHead, TorchFirstCode
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.protocol import Stack, StackConfig
from voice_clone.autoregressive.talker import Prefix, TalkerInput
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig, TalkerConfig
from voice_clone.families.qwen3_tts.networks.code_predictor import CodePredictor
from voice_clone.families.qwen3_tts.prefill import build_talker_input, prefill_length, prefix_of
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.layers.fused import empty_table
from voice_clone.layers.graphs import to_device

ROWS_AT_ONCE = 32  # text tokens that are projected together on a GPU
CONTROL_IDS = 1024  # the last ids of the talker's vocabulary are control tokens, never codes


class TextProjection(nn.Module):
    """Text embedding size -> hidden size."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.linear_fc1: nn.Module = nn.Linear(config.text_hidden_size, config.text_hidden_size)
        self.linear_fc2: nn.Module = nn.Linear(config.text_hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[N, text size] -> [N, C].

        A product of torch rounds by its number of rows. So each has the same number here: a text that comes piece by
        piece gets the rows that it gets as a whole.
        """
        size = 1 if x.device.type == "cpu" else ROWS_AT_ONCE
        padded = F.pad(x, (0, 0, 0, -len(x) % size))
        return torch.cat([self.project(piece) for piece in torch.split(padded, size)])[: len(x)]

    def project(self, x: Tensor) -> Tensor:
        """Of any number of rows."""
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out


class TalkerModel(DecoderStack):
    """Layers and tables."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(StackConfig.of(config))
        self.codec_embedding = empty_table(config.vocab_size, config.hidden_size)
        self.text_embedding = empty_table(config.text_vocab_size, config.text_hidden_size)


class Talker(nn.Module):
    """Talker and, below it, the code predictor: a `voice_clone.autoregressive.talker.Talker`.

    Attributes:
        stack: of torch's layers, or the native one in their place.
        head: a `CodeHead`.
        embed_frames: codec frames, int64 [N, K] -> [N, C]: the sum of the K codes' embeddings.
    """

    min_frames = 2  # as qwen-tts 0.1.1 calls `generate`

    def __init__(self, config: Qwen3TTSConfig) -> None:
        super().__init__()
        self.config = config
        talker = config.talker
        self.model = TalkerModel(talker)
        self.text_projection: nn.Module = TextProjection(talker)
        self.codec_head: nn.Module = nn.Linear(talker.hidden_size, talker.vocab_size, bias=False)
        self.code_predictor = CodePredictor(talker)
        self.native_stack: Stack | None = None
        self.embed_frames: Callable[[Tensor], Tensor] = self._embed_frames
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
        return self.native_stack or self.model

    def check(self, prompt: Prompt) -> None:
        prompt.check(self.config)

    def prompt_length(self, prompt: Prompt) -> int:
        return prefill_length(prompt)

    def prefix(self, prompt: Prompt) -> Prefix:
        return prefix_of(prompt)

    def embed_prompt(self, prompt: Prompt) -> TalkerInput:
        return build_talker_input(self, self.config, prompt)

    def embed_codec_tokens(self, ids: Tensor) -> Tensor:
        """Codes of codebook 0 or control tokens, int64 [N] -> [N, C]."""
        rows: Tensor = self.model.codec_embedding(ids)
        return rows

    def embed_text(self, ids: Tensor) -> Tensor:
        """Text tokens, int64 [N] -> [N, C]. The table may be of another dtype or device: only N rows are moved."""
        table, like = self.model.text_embedding, self.stack.like
        rows = to_device(F.embedding(to_device(ids, table.weight.device), table.weight), like.device, like.dtype)
        projected: Tensor = self.text_projection(rows)
        return projected

    def _embed_frames(self, codes: Tensor) -> Tensor:
        first = self.model.codec_embedding(codes[:, :1])
        return torch.cat([first, self.code_predictor.embed(codes[:, 1:])], dim=1).sum(1)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.codec_head(hidden)
        return logits


def suppressed_ids(config: TalkerConfig) -> npt.NDArray[np.bool_]:
    """The ids that codebook 0 never takes: control tokens except end of speech. bool [V]."""
    mask = np.zeros(config.vocab_size, np.bool_)
    mask[config.vocab_size - CONTROL_IDS :] = True
    mask[config.codec_eos_token_id] = False
    return mask
