"""The code predictor: from the talker's hidden state and codebook 0 of a frame, codebooks 1..15, one after the other.

qwen-tts 0.1.1, `modeling_qwen3_tts.py` (`Qwen3TTSTalkerCodePredictorModelForConditionalGeneration`): a small Qwen3
transformer over at most 16 positions: the hidden state, then one code a position; each codebook has an
embedding and a head of its own. Attribute names equal the official tensor names below `talker.code_predictor.`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn

from voice_clone.autoregressive.decoder_layer import DecoderLayer, KVCache, Span, causal_mask
from voice_clone.autoregressive.native_stack import NativeStack
from voice_clone.autoregressive.sampling import Draw
from voice_clone.families.qwen3_tts.config import TalkerConfig
from voice_clone.families.qwen3_tts.networks.native_predictor import NativePredictor
from voice_clone.layers.attention import RMSNorm
from voice_clone.layers.fused import fused_tables
from voice_clone.native.matrix.linear import NativeLinear
from voice_clone.native.matrix.weights import Packed, Precision, head_precision, pack

Choose = Callable[[Tensor, int], Tensor]
"""(logits [B, V], codebook index) -> codes int64 [B]."""


class CodePredictorModel(nn.Module):
    """Tables and layers; the tables of codebook 1, 2, ... are in the talker's hidden size."""

    def __init__(self, talker: TalkerConfig) -> None:
        super().__init__()
        config = talker.code_predictor_config
        self.codec_embedding = fused_tables(
            self, "codec_embedding", config.num_code_groups - 1, config.vocab_size, talker.hidden_size
        )
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class CodePredictor(nn.Module):
    """Completes frames: [hidden state, code 0] -> 16 codes."""

    def __init__(self, talker: TalkerConfig) -> None:
        super().__init__()
        self.config = config = talker.code_predictor_config
        self.model = CodePredictorModel(talker)
        self.lm_head = nn.ModuleList(
            nn.Linear(config.hidden_size, config.vocab_size, bias=False) for _ in range(config.num_code_groups - 1)
        )
        self.small_to_mtp_projection: nn.Module = nn.Identity()
        if config.hidden_size != talker.hidden_size:  # 1.7B
            self.small_to_mtp_projection = nn.Linear(talker.hidden_size, config.hidden_size)
        self.native: NativeStack | None = None  # runs instead of the layers
        self._loop: NativePredictor | None = None  # runs instead of all

    def to_native(self, precision: Precision) -> None:
        """As `Talker.to_native`; the embeddings are rounded to bf16 at any precision but fp32."""
        self.native = NativeStack(self.model.layers, self.model.norm, precision)
        self.model.layers = nn.ModuleList()
        kept = head_precision(precision)
        heads = Packed.stack([pack(head.weight.detach(), kept) for head in self.lm_head])  # type: ignore[operator]
        size = self.config.vocab_size
        self.lm_head = nn.ModuleList(NativeLinear(heads[index], size) for index in range(len(self.lm_head)))
        projection = None
        if isinstance(self.small_to_mtp_projection, nn.Linear):
            self.small_to_mtp_projection = projection = NativeLinear.of(self.small_to_mtp_projection, kept)
        if precision != "fp32":
            rounded = self.model.codec_embedding.weight.bfloat16()
            self.model.codec_embedding = nn.Embedding.from_pretrained(rounded)  # type: ignore[no-untyped-call]
        tables = self.model.codec_embedding.weight.view(len(self.lm_head), size, -1)
        self._loop = NativePredictor(self.native, heads, size, tables, projection)

    def embed(self, codes: Tensor, book: int = 1) -> Tensor:
        """Codes of codebook `book` and those behind it, int64 [N, K] -> [N, K, the talker's hidden size]."""
        books = torch.arange(book - 1, book - 1 + codes.shape[1], device=codes.device)
        embedded: Tensor = self.model.codec_embedding(codes + books * self.config.vocab_size)
        return embedded.to(self.model.norm.weight.dtype)

    def new_cache(self, slots: int) -> KVCache:
        """A cache for up to `slots` frames at once; `predict` overwrites what it reads, so it serves all calls."""
        # The last code is never fed back, so 16 codes need 16 positions: the hidden state and codes 0..14.
        return KVCache(self.config, slots, self.config.num_code_groups, self.model.norm.weight)

    @torch.inference_mode()
    def predict(self, cache: KVCache, hidden: Tensor, code0: Tensor, embed0: Tensor, choose: Choose) -> Tensor:
        """Complete one frame of each of B streams.

        Args:
            cache: of `new_cache(slots)`, slots >= B.
            hidden: [B, C], the talker's hidden state from which code 0 was chosen.
            code0: int64 [B].
            embed0: [B, C], code 0 embedded by the talker.
            choose: picks each stream's code from its logits; called with codebook index 1, 2, ..., 15. A `Draw` native
                code makes by itself, with the same result.

        Returns:
            int64 [B, 16], code 0 first.
        """
        books = self.config.num_code_groups
        codes = [code0]
        x = torch.stack([hidden, embed0], dim=1)  # [B, 2, C]
        if self._loop is not None and isinstance(choose, Draw):
            return self._loop(cache, self.small_to_mtp_projection(x), code0, choose)
        start = 0
        for book in range(1, books):
            out = self._run(self.small_to_mtp_projection(x), start, cache)
            codes.append(choose(self.lm_head[book - 1](out), book))
            start += x.shape[1]
            if book < books - 1:
                x = self.embed(codes[-1][:, None], book)  # [B, 1, C]
        return torch.stack(codes, dim=1)

    def _run(self, x: Tensor, start: int, cache: KVCache) -> Tensor:
        """T positions from `start` on of B streams, [B, T, C] -> normed hidden state of the last one [B, C]."""
        batch, length, _ = x.shape
        end = start + length
        if self.native is not None:
            return self.native(x.flatten(0, 1), cache, *_places(batch, start, end)).view(batch, length, -1)[:, -1]
        span = Span(slice(0, batch), slice(start, end), slice(0, batch), end)
        mask = causal_mask(length, start, self.config, x.device) if length > 1 else None
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cache.cos[start:end], cache.sin[start:end], mask, cache, index, span)
        normed: Tensor = self.model.norm(x[:, -1])
        return normed


@lru_cache(maxsize=1024)
def _places(batch: int, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Slots and positions, int64 [B * T], of the rows from `start` to `end` of B streams."""
    return torch.arange(batch).repeat_interleave(end - start), torch.arange(start, end).repeat(batch)
