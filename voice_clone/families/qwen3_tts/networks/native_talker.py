"""The talker as native code, for a CPU. It does without torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from voice_clone.array_kinds import Numbers
from voice_clone.autoregressive.code_head import CodeHead
from voice_clone.autoregressive.native_first_code import NativeFirstCode
from voice_clone.autoregressive.native_parts import NativeParts
from voice_clone.autoregressive.native_predictor import NativePredictor, packed_heads
from voice_clone.autoregressive.stack.native_stack import add_embeddings
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.prompt_reader import PromptReader, suppressed_ids
from voice_clone.mapped_weights import Read
from voice_clone.native.arrays import Array
from voice_clone.native.matrix.weights import as_float32, stacked
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.native.silu import silu_in_place
from voice_clone.settings import Precision

TEXT_TABLE = "model.text_embedding.weight"


class NativeTalker(PromptReader):
    """A `voice_clone.autoregressive.talker.Talker` of arrays, with its code predictor.

    Args:
        config: of the checkpoint.
        precision: to which the weights of all layers are rounded; those of the heads not below int8. Embeddings of the
            code predictor are rounded to bf16 at any precision but fp32. The projection of the text stays fp32, because
            a prompt needs it once.
        read: the checkpoint's tensors, by their names below `talker.`.
        text_table: embeddings of text tokens [tokens, text size], as `as_array` has them. It may stay in the file, for
            a prompt reads few of its rows.
        packed: finds what is packed, and keeps it.
    """

    def __init__(
        self,
        config: Qwen3TTSConfig,
        precision: Precision,
        read: Read,
        text_table: Array,
        packed: PackedFile = NOWHERE,
    ) -> None:
        self.config = config
        talker = config.talker
        sizes, books = talker.code_predictor_config, range(talker.num_code_groups - 1)
        hidden, text_size, exact = talker.hidden_size, talker.text_hidden_size, precision == "fp32"

        parts = NativeParts(precision, read, packed)

        def of_books(prefix: str, size: int) -> list[Numbers]:
            """A matrix of each codebook but the first."""
            return [read(f"code_predictor.{prefix}.{book}.weight", (sizes.vocab_size, size)) for book in books]

        self.stack = parts.stack("model", StackConfig.of(talker))
        self.text_table = text_table
        self._projections = (
            parts.linear({"text_projection.linear_fc1": text_size}, text_size, precision="fp32"),
            parts.linear({"text_projection.linear_fc2": hidden}, text_size, precision="fp32"),
        )
        shape = talker.vocab_size, hidden
        [self._first] = packed.part("table")(
            lambda: [*stacked([read("model.codec_embedding.weight", shape)], exact=True)]
        )
        [others] = packed.part("tables", sparse=True)(
            lambda: [stacked(of_books("model.codec_embedding", hidden), exact)]
        )
        projection = None
        if sizes.hidden_size != hidden:  # 1.7B
            projection = parts.linear({"code_predictor.small_to_mtp_projection": sizes.hidden_size}, hidden)
        predictor = NativePredictor(
            parts.stack("code_predictor.model", StackConfig.of(sizes)),
            packed_heads(lambda: of_books("lm_head", sizes.hidden_size), precision, packed.part("heads")),
            sizes.vocab_size,
            others,
            talker.num_code_groups,
            projection,
        )
        self._others = predictor.tables
        if self._others.dtype == np.float32 != self._first.dtype:  # native code adds rows of one form
            self._first = as_float32(self._first)
        logits = parts.linear({"codec_head": talker.vocab_size}, hidden, bias=False)
        packed.keep()
        self.head = CodeHead(
            end_code=talker.codec_eos_token_id,
            vocabulary=talker.vocab_size,
            logits=logits,
            first=NativeFirstCode(suppressed_ids(talker), talker.codec_eos_token_id),
            predictor=predictor,
            embed=self.embed_codec_tokens,
            codebooks=talker.num_code_groups,
        )

    def numbers(self, array: Array) -> Array:
        return array

    def embed_text(self, ids: npt.NDArray[np.integer[Any]]) -> Array:
        """A row does not depend on the others beside it."""
        first, second = self._projections
        inner = first(as_float32(self.text_table[ids]))
        silu_in_place(inner.reshape(-1))
        return second(inner)

    def embed_codec_tokens(self, ids: Array) -> Array:
        return as_float32(self._first[ids])

    def embed_frames(self, codes: Array) -> Array:
        rows = np.empty((len(codes), self._first.shape[1]), np.float32)
        books, size, width = self._others.shape
        codes = np.ascontiguousarray(codes)
        add_embeddings(self._first, self._others.reshape(books * size, width), size, codes, rows)
        return rows
