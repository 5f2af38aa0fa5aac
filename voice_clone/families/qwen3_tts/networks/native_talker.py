"""The talker and the code predictor as native code, on a CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from voice_clone.autoregressive.code_predictor import frame_cache
from voice_clone.autoregressive.first_code import NativeFirstCode
from voice_clone.autoregressive.native_predictor import Load, layer_loader
from voice_clone.autoregressive.sampling import Draw, Filters
from voice_clone.autoregressive.stack.kv_cache import KVCache
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.autoregressive.steps.rows import RowTable
from voice_clone.families.qwen3_tts.networks.native_predictor import NativeCodePredictor
from voice_clone.families.qwen3_tts.networks.prompt_reader import PromptReader
from voice_clone.families.qwen3_tts.networks.talker import Talker, suppressed_ids, text_rows
from voice_clone.native.matrix.linear import NativeLinear
from voice_clone.native.matrix.weights import Precision, embedding_array, head_precision
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.native.transformer import embedding


class NativeTalker(PromptReader):
    """A `voice_clone.autoregressive.talker.Talker` whose layers run as native code.

    Args:
        talker: in torch, fp32, on the CPU. Its layers and heads are packed one after the other and freed.
        precision: to which the weights of all layers are rounded; those of the heads not below int8. The projection of
            the text stays fp32, because a prompt needs it once.
        load: fills a module, given its name below `talker.`; for the layers, if they are not loaded yet.
        packed: finds the packed layers and keeps them.
    """

    def __init__(
        self, talker: Talker, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
    ) -> None:
        self.config = talker.config
        self._stack = NativeStack(talker.stack, precision, layer_loader(load, "model"), packed.part("talker"))
        self._head = NativeLinear.of(talker.codec_head, head_precision(precision))
        self.text_embedding, self._text_projection = talker.model.text_embedding, talker.text_projection
        for name in ("linear_fc1", "linear_fc2"):
            setattr(self._text_projection, name, NativeLinear.of(getattr(self._text_projection, name), "fp32"))
        self._codec_embedding = talker.model.codec_embedding
        self.code_predictor = NativeCodePredictor(talker.code_predictor, precision, load, packed)
        packed.keep()
        self._first_code = NativeFirstCode(suppressed_ids(self.config.talker, torch.device("cpu")), self.end_code)

    @property
    def stack(self) -> NativeStack:
        return self._stack

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that a frame reads: the layers, the predictor's as often as it runs, and the heads."""
        predictor = self.code_predictor
        heads = self._head.nbytes + sum(head.nbytes for head in predictor.lm_head)
        return self._stack.nbytes + (self.codebooks - 1) * predictor.nbytes + heads

    def embed_codec_tokens(self, ids: Tensor) -> Tensor:
        rows: Tensor = self._codec_embedding(ids)
        return rows

    def embed_frames(self, codes: Tensor) -> Tensor:
        first, others = self._codec_embedding.weight, self.code_predictor.codec_embedding
        rows = np.empty((codes.shape[0], first.shape[1]), np.float32)
        size = self.config.talker.code_predictor_config.vocab_size
        embedding.embed_frames(embedding_array(first), embedding_array(others), size, codes.contiguous().numpy(), rows)
        return torch.from_numpy(rows)

    def embed_text(self, ids: Tensor) -> Tensor:
        rows: Tensor = self._text_projection(text_rows(self.text_embedding, ids, self._stack.like))
        return rows

    def head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head(hidden)
        return logits

    def first_code(self, logits: Tensor, used: Tensor, table: RowTable, filters: Filters) -> tuple[Tensor, Tensor]:
        return self._first_code(logits, used, table, filters)

    def new_frame_cache(self, slots: int) -> KVCache:
        return frame_cache(self.code_predictor, slots)

    def complete(self, cache: KVCache | None, hidden: Tensor, code0: Tensor, draw: Draw) -> Tensor:
        assert cache is not None
        return self.code_predictor.complete(cache, hidden, code0, self.embed_codec_tokens(code0), draw)
