"""The talker as native code, on a CPU."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from voice_clone.autoregressive.code_predictor import frame_cache
from voice_clone.autoregressive.first_code import NativeRepetitionAwareFirstCode
from voice_clone.autoregressive.native_predictor import Load, NativePredictor, layer_loader
from voice_clone.autoregressive.sampling import Draw, Filters
from voice_clone.autoregressive.stack.kv_cache import KVCache
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.autoregressive.steps.rows import RowTable
from voice_clone.families.fish_speech.networks.prompt_reader import PromptReader
from voice_clone.families.fish_speech.networks.talker import Talker
from voice_clone.native.matrix.linear import NativeLinear
from voice_clone.native.matrix.weights import Precision, embedding_array, head_precision, pack
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.native.transformer import embedding


class NativeTalker(PromptReader):
    """As `Talker`; its layers run as native code.

    The tables of embeddings stay as they are, for a frame reads a few of their rows.

    Args:
        talker: in torch, fp32, on the CPU. Its layers and heads are packed one after the other and freed.
        precision: to which the weights of all layers are rounded; those of the heads not below int8.
        load: fills a module, given its name below the talker; for the layers, if they are not loaded yet.
        packed: finds the packed layers and keeps them.
    """

    def __init__(
        self, talker: Talker, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
    ) -> None:
        self.config = talker.config
        self._token_table = talker.token_table.detach()
        rows = talker.code_rows
        self._code_rows = embedding_array(rows)
        self._head = NativeLinear(pack(rows, head_precision(precision)), len(rows))
        self._stack = NativeStack(talker.slow, precision, layer_loader(load, "slow"), packed.part("slow"))
        fast = talker.fast
        self._codebooks = embedding_array(fast.codebook_embeddings.weight.detach())
        output = fast.output.weight
        assert isinstance(output, Tensor)
        self.fast = NativePredictor(
            NativeStack(fast, precision, layer_loader(load, "fast"), packed.part("fast")),
            [output.detach()[: fast.codes]],
            fast.embeddings.weight.detach(),
            self.config.semantic_codes,
            self.codebooks,
            precision,
            unheated=True,
            part=packed.part("output"),
        )
        packed.keep()
        self._first_code = NativeRepetitionAwareFirstCode(self.vocabulary, self.end_code)

    @property
    def stack(self) -> NativeStack:
        return self._stack

    @property
    def token_table(self) -> Tensor:
        return self._token_table

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that a frame reads: the layers, the predictor's as often as it runs, and the heads."""
        heads = self._head.nbytes + (self.codebooks - 1) * self.fast.lm_head[0].nbytes
        return self._stack.nbytes + (self.codebooks - 1) * self.fast.nbytes + heads

    def embed_frames(self, codes: Tensor) -> Tensor:
        repeated = torch.cat([codes[:, :1], codes], dim=1).contiguous()  # the token, then each codebook's code
        rows = np.empty((len(codes), self._code_rows.shape[1]), np.float32)
        embedding.embed_frames(self._code_rows, self._codebooks, self.config.semantic_codes, repeated.numpy(), rows)
        return torch.from_numpy(rows) / math.sqrt(self.codebooks + 1)

    def head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head(hidden)
        return logits

    def first_code(self, logits: Tensor, used: Tensor, table: RowTable, filters: Filters) -> tuple[Tensor, Tensor]:
        return self._first_code(logits, used, table, filters)

    def new_frame_cache(self, slots: int) -> KVCache:
        return frame_cache(self.fast, slots)

    def complete(self, cache: KVCache | None, hidden: Tensor, code0: Tensor, draw: Draw) -> Tensor:
        assert cache is not None
        code = code0.clamp(max=self.end_code - 1)  # as of `Talker.complete`
        codes = self.fast.complete(cache, hidden, code, self.fast.embed(code[:, None])[:, 0], draw)
        return torch.cat([code0[:, None], codes[:, 1:]], dim=1)
