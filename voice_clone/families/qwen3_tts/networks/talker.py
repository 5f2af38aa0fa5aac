"""The talker: a Qwen3 transformer that predicts codebook 0 of the next codec frame.

qwen-tts 0.1.1, `modeling_qwen3_tts.py` (`Qwen3TTSTalkerForConditionalGeneration`). Its interleaved multimodal RoPE
(Qwen2-VL, Wang et al. 2024) picks, for each rotary dimension, one of three position axes; here no image or
video exists, all three axes hold the same position, and whichever is picked the result is plain RoPE.
Attribute names equal the official tensor names below `talker.`.

Shapes: B streams, T positions, C hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.decoder_layer import DecoderLayer, KVCache, Span, causal_mask
from voice_clone.autoregressive.native_stack import NativeStack
from voice_clone.families.qwen3_tts.config import TalkerConfig
from voice_clone.families.qwen3_tts.networks.code_predictor import CodePredictor
from voice_clone.layers.attention import RMSNorm
from voice_clone.layers.fused import empty_table
from voice_clone.native.matrix.linear import NativeLinear
from voice_clone.native.matrix.weights import Precision, embedding_array, head_precision
from voice_clone.native.transformer import embedding


class TextProjection(nn.Module):
    """Text embedding size -> hidden size."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.linear_fc1: nn.Module = nn.Linear(config.text_hidden_size, config.text_hidden_size)
        self.linear_fc2: nn.Module = nn.Linear(config.text_hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out


class TalkerModel(nn.Module):
    """Tables and layers."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.codec_embedding = empty_table(config.vocab_size, config.hidden_size)
        self.text_embedding = empty_table(config.text_vocab_size, config.text_hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Talker(nn.Module):
    """Talker and, below it, the code predictor. It keeps no state: the key-value cache is the caller's."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        self.model = TalkerModel(config)
        self.text_projection = TextProjection(config)
        self.codec_head: nn.Module = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.code_predictor = CodePredictor(config)
        self.native: NativeStack | None = None  # runs instead of the layers

    def to_native(self, precision: Precision) -> None:
        """Run on this CPU as native code from now on, the weights of all layers and heads rounded to `precision`,
        the heads' not below int8. The text's projection stays fp32: a prompt needs it once.

        The layers' own weights are given up: the state dict is of no use any more.
        """
        self.native = NativeStack(self.model.layers, self.model.norm, precision)
        self.model.layers = nn.ModuleList()
        self.codec_head = NativeLinear.of(self.codec_head, head_precision(precision))
        projection = self.text_projection
        projection.linear_fc1 = NativeLinear.of(projection.linear_fc1, "fp32")
        projection.linear_fc2 = NativeLinear.of(projection.linear_fc2, "fp32")
        self.code_predictor.to_native(precision)

    @property
    def device(self) -> torch.device:
        return self.model.norm.weight.device

    def new_cache(self, slots: int, max_length: int) -> KVCache:
        """A key-value cache of `slots` streams of at most `max_length` positions."""
        return KVCache(self.config, slots, max_length, self.model.norm.weight)

    @torch.inference_mode()
    def prefill(self, cache: KVCache, slot: int, embeds: Tensor, offset: int = 0) -> Tensor:
        """Run T positions of one stream that follow `offset` earlier ones, already in the cache.

        Args:
            embeds: [T, C].

        Returns:
            [C], the normed hidden state of the last position.
        """
        length = embeds.shape[0]
        end = offset + length
        positions = torch.arange(offset, end, device=self.device)
        if self.native is not None:
            return self.native(embeds, cache, torch.full_like(positions, slot), positions)[-1]
        mask = causal_mask(length, offset, self.config, self.device)
        row = slice(slot, slot + 1)
        return self._run(embeds[None], positions, mask, cache, Span(row, slice(offset, end), row, end))[0]

    @torch.inference_mode()
    def decode(
        self,
        cache: KVCache,
        slots: Sequence[int],
        positions: Sequence[int],
        embeds: Tensor,
        seen: Sequence[int] | None = None,
    ) -> Tensor:
        """Advance B streams by one position each.

        Args:
            slots: B different slots; an ascending run of neighbours is read without a copy.
            positions: each stream's new position = the number of positions it has in the cache.
            embeds: [B, C].
            seen: how many positions each stream attends to, by itself; None: all attend together. Native code lets
                each attend by itself in any case.

        Returns:
            [B, C], the normed hidden states.
        """
        length = max(positions) + 1
        where = torch.tensor([slots, positions], device=self.device)  # one transfer for both
        if self.native is not None:
            return self.native(embeds, cache, where[0], where[1])
        mask = None
        if seen is None:
            mask = (torch.arange(length, device=self.device) <= where[1, :, None])[:, None, None]  # [B, 1, 1, S]
        neighbours = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        read = slice(slots[0], slots[0] + len(slots)) if neighbours else where[0]
        span = Span(where[0], where[1], read, length, seen)
        return self._run(embeds[:, None], where[1, :, None], mask, cache, span)

    @torch.inference_mode()
    def decode_first(self, cache: KVCache, positions: Tensor, embeds: Tensor, length: int) -> Tensor:
        """Advance the streams of slots 0..B-1 by one position each; no value is looked at, so a CUDA graph can hold it.

        Args:
            positions: int64 [B], each stream's new position; `length` or more where the result counts for nothing.
            embeds: [B, C].
            length: the first so many positions of the cache are read, as far as a stream's position allows.

        Returns:
            [B, C], the normed hidden states.
        """
        batch = embeds.shape[0]
        slots = torch.arange(batch, device=self.device)
        if self.native is not None:
            return self.native(embeds, cache, slots, positions)
        unseen = torch.arange(length, device=self.device) > positions[:, None]
        # Added to the scores: from a bool mask every layer would make this anew.
        mask = torch.zeros_like(unseen, dtype=embeds.dtype).masked_fill(unseen, -torch.inf)[:, None, None]
        span = Span(slots, positions, slice(0, batch), length)
        return self._run(embeds[:, None], positions[:, None], mask, cache, span)

    def _run(self, x: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache, span: Span) -> Tensor:
        """x [B, T, C] -> hidden state of the last position [B, C]."""
        cos, sin = cache.cos[positions], cache.sin[positions]
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, mask, cache, index, span)
        hidden: Tensor = self.model.norm(x[:, -1])
        return hidden

    def embed_frames(self, codes: Tensor) -> Tensor:
        """Codec frames, int64 [N, 16] -> [N, C]: the sum of the 16 codes' embeddings."""
        if self.native is not None:
            first, others = self.model.codec_embedding.weight, self.code_predictor.model.codec_embedding.weight
            rows = np.empty((codes.shape[0], first.shape[1]), np.float32)
            size = self.code_predictor.config.vocab_size
            embedding.embed_frames(
                embedding_array(first), embedding_array(others), size, codes.contiguous().numpy(), rows
            )
            return torch.from_numpy(rows)
        first = self.model.codec_embedding(codes[:, :1])
        return torch.cat([first, self.code_predictor.embed(codes[:, 1:])], dim=1).sum(1)

    def embed_text(self, ids: Tensor) -> Tensor:
        """Text tokens, int64 [N] -> [N, C]. The table may be of another dtype or device: only N rows are moved."""
        table = self.model.text_embedding.weight
        weight = self.model.norm.weight
        rows = F.embedding(ids.to(table.device), table).to(weight.device, weight.dtype)
        projected: Tensor = self.text_projection(rows)
        return projected
