"""The talker: a Qwen3 transformer that predicts codebook 0 of the next codec frame. In torch.

qwen-tts 0.1.1, `modeling_qwen3_tts.py` (`Qwen3TTSTalkerForConditionalGeneration`). Its interleaved multimodal RoPE
(Qwen2-VL, Wang et al. 2024) picks, for each rotary dimension, one of three position axes. Here no image or video
exists and all three axes hold the same position, so the result is plain RoPE. Attribute names equal the official tensor
names below `talker.`.

Shapes: B streams, N frames or tokens, K codebooks, C hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.code_predictor import complete_by_steps, frame_cache
from voice_clone.autoregressive.first_code import TorchFirstCode
from voice_clone.autoregressive.sampling import Draw, Filters
from voice_clone.autoregressive.stack.config import StackConfig
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.kv_cache import KVCache
from voice_clone.autoregressive.steps.rows import RowTable
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig, TalkerConfig
from voice_clone.families.qwen3_tts.networks.code_predictor import CodePredictor
from voice_clone.families.qwen3_tts.networks.prompt_reader import PromptReader
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
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out


class TalkerModel(DecoderStack):
    """Layers and tables."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(StackConfig.of(config))
        self.codec_embedding = empty_table(config.vocab_size, config.hidden_size)
        self.text_embedding = empty_table(config.text_vocab_size, config.text_hidden_size)


class Talker(PromptReader, nn.Module):
    """Talker and, below it, the code predictor: a `voice_clone.autoregressive.talker.Talker`."""

    def __init__(self, config: Qwen3TTSConfig) -> None:
        nn.Module.__init__(self)
        self.config = config
        talker = config.talker
        self.model = TalkerModel(talker)
        self.text_projection = TextProjection(talker)
        self.codec_head: nn.Module = nn.Linear(talker.hidden_size, talker.vocab_size, bias=False)
        self.code_predictor = CodePredictor(talker)
        self._first_code: TorchFirstCode | None = None  # made with the first logits, whose device it needs

    @property
    def stack(self) -> DecoderStack:
        return self.model

    def embed_codec_tokens(self, ids: Tensor) -> Tensor:
        """Codes of codebook 0 or control tokens, int64 [N] -> [N, C]."""
        rows: Tensor = self.model.codec_embedding(ids)
        return rows

    def embed_frames(self, codes: Tensor) -> Tensor:
        """Codec frames, int64 [N, K] -> [N, C]: the sum of the K codes' embeddings."""
        first = self.model.codec_embedding(codes[:, :1])
        return torch.cat([first, self.code_predictor.embed(codes[:, 1:])], dim=1).sum(1)

    def embed_text(self, ids: Tensor) -> Tensor:
        """Text tokens, int64 [N] -> [N, C]. The table may be of another dtype or device: only N rows are moved.

        A product of torch rounds by its number of rows. So each has the same number here: a text that comes piece by
        piece gets the rows that it gets as a whole.
        """
        rows = text_rows(self.model.text_embedding, ids, self.model.norm.weight)
        size = 1 if rows.device.type == "cpu" else ROWS_AT_ONCE
        padded = F.pad(rows, (0, 0, 0, -len(rows) % size))
        return torch.cat([self.text_projection(piece) for piece in torch.split(padded, size)])[: len(rows)]

    def head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.codec_head(hidden)
        return logits

    def first_code(self, logits: Tensor, used: Tensor, table: RowTable, filters: Filters) -> tuple[Tensor, Tensor]:
        if self._first_code is None:
            self._first_code = TorchFirstCode(suppressed_ids(self.config.talker, logits.device), self.end_code)
        return self._first_code(logits, used, table, filters)

    def new_frame_cache(self, slots: int) -> KVCache:
        return frame_cache(self.code_predictor, slots)

    def complete(self, cache: KVCache | None, hidden: Tensor, code0: Tensor, draw: Draw) -> Tensor:
        assert cache is not None
        return complete_by_steps(self.code_predictor, cache, hidden, code0, self.embed_codec_tokens(code0), draw)


def text_rows(table: nn.Embedding, ids: Tensor, like: Tensor) -> Tensor:
    """Rows of the text table, on the device and in the dtype of `like`."""
    return to_device(F.embedding(to_device(ids, table.weight.device), table.weight), like.device, like.dtype)


def suppressed_ids(config: TalkerConfig, device: torch.device) -> Tensor:
    """The ids that codebook 0 never takes: control tokens except end of speech. bool [V]."""
    mask = torch.zeros(config.vocab_size, dtype=torch.bool, device=device)
    mask[config.vocab_size - CONTROL_IDS :] = True
    mask[config.codec_eos_token_id] = False
    return mask
