"""The talker's networks in torch. Names are official."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.array_kinds import in_dtype_of, in_kind_of
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.families.voxtral.checkpoint import padded
from voice_clone.families.voxtral.config import FlowConfig, VoxtralConfig
from voice_clone.families.voxtral.flow_head import Flow, FlowHead, embedded_times
from voice_clone.families.voxtral.talker import Talker, layout
from voice_clone.layers.attention import GatedMLP, RMSNorm, attend, split_heads
from voice_clone.layers.fused import empty_table, fused_linear
from voice_clone.layers.graphs import CachedOnGpu


class FlowAttention(nn.Module):
    """Grouped-query attention in which all positions see each other, without rotary embedding."""

    def __init__(self, flow: FlowConfig) -> None:
        super().__init__()
        self.head_dim, self.heads, self.kv_heads = flow.head_dim, flow.n_heads, flow.n_kv_heads
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        parts = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        self.qkv_proj: nn.Module = fused_linear(self, "qkv_proj", flow.dim, parts)
        self.o_proj: nn.Module = nn.Linear(queries, flow.dim, bias=False)

    def forward(self, x: Tensor, count: int) -> Tensor:
        """[B, T, C] -> [B, count, C], of the first positions."""
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = torch.split(split_heads(self.qkv_proj(x), self.head_dim), sizes, dim=1)
        out: Tensor = self.o_proj(attend(q[:, :, :count], k, v))
        return out


class FlowLayer(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, flow: FlowConfig) -> None:
        super().__init__()
        self.self_attn = FlowAttention(flow)
        self.mlp = GatedMLP(flow.dim, flow.hidden_dim)
        self.input_layernorm = RMSNorm(flow.dim, flow.norm_eps)
        self.post_attention_layernorm = RMSNorm(flow.dim, flow.norm_eps)

    def forward(self, x: Tensor, count: int) -> Tensor:
        """[B, T, C] -> [B, count, C], of the first positions."""
        x = x[:, :count] + self.self_attn(self.input_layernorm(x), count)
        hidden: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return hidden


class FlowTransformer(nn.Module):
    """The networks of the head."""

    def __init__(self, config: VoxtralConfig) -> None:
        super().__init__()
        flow, audio = config.flow, config.audio
        size, acoustic = flow.dim, audio.n_acoustic_codebook
        self.steps, self.size = flow.n_decoding_steps, size
        self.semantic_codebook_output = nn.Linear(size, 1 + audio.semantic_codebook_size, bias=False)
        self.input_projection = nn.Linear(acoustic, size, bias=False)
        self.time_projection = nn.Linear(size, size, bias=False)
        self.llm_projection = nn.Linear(flow.input_dim, size, bias=False)
        self.layers = nn.ModuleList(FlowLayer(flow) for _ in range(flow.n_layers))
        self.norm = RMSNorm(size, flow.norm_eps)
        self.acoustic_codebook_output = nn.Linear(size, acoustic, bias=False)
        self._times: Tensor | None = None  # made when they are first needed: the weights are loaded then

    def times(self) -> Tensor:
        """As of `Flow`."""
        if self._times is None:
            like = self.norm.weight
            embedded = in_dtype_of(like, in_kind_of(like, embedded_times(self.steps, self.size)))
            self._times = self.time_projection(embedded)
        return self._times

    def read(self, rows: Tensor) -> Tensor:
        """[B, T, C] -> the normed result of the first position [B, C]."""
        for number, layer in enumerate(self.layers, start=1):
            rows = layer(rows, 1 if number == len(self.layers) else rows.shape[1])
        hidden: Tensor = self.norm(rows[:, 0])
        return hidden

    def head(self, config: VoxtralConfig) -> FlowHead:
        """The head of these networks."""
        flow = Flow(self.llm_projection, self.input_projection, self.read, self.acoustic_codebook_output, self.times)
        return FlowHead(config, self.semantic_codebook_output, flow)


class Tables(nn.Module):
    """Embeddings of tokens, and of the ids of all codebooks one behind the other."""

    def __init__(self, config: VoxtralConfig) -> None:
        super().__init__()
        self.tok_embeddings = empty_table(config.vocab_size, config.dim)
        self.audio_codebook_embeddings = nn.ModuleDict(
            {"embeddings": empty_table(padded(sum(config.id_limits)), config.dim)}
        )


class TalkerNetwork(nn.Module):
    """Both networks with their tables."""

    def __init__(self, config: VoxtralConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = DecoderStack(layout(config))
        self.tables = Tables(config)
        self.flow = FlowTransformer(config)
        self._starts: CachedOnGpu[Tensor] = CachedOnGpu()  # of the codebooks' tables, each a row

    def talker(self) -> Talker:
        """The talker of these networks."""
        table = self.tables.tok_embeddings.weight
        return Talker(self.config, self.backbone, table, self._embed_ids, self.flow.head(self.config))

    def _embed_ids(self, ids: Tensor) -> Tensor:
        """As of `Talker`."""
        table: Any = self.tables.audio_codebook_embeddings["embeddings"]
        semantic, *acoustic = self.config.id_limits
        starts = self._starts.get(
            table.weight,
            lambda: F.pad(torch.arange(len(acoustic), device=ids.device) * acoustic[0] + semantic, (1, 0)),
        )
        rows: Tensor = table(ids + starts).to(self.backbone.like.dtype).sum(1)
        return rows
