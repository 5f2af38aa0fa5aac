"""From the backbone's hidden state to a frame: the likeliest semantic code, and acoustic codes by flow matching.

Noise becomes acoustic codes by Euler's method over a learned velocity (Lipman et al. 2023), with classifier-free
guidance: the velocity is extrapolated from that without the hidden state to that with it. The velocity is what a small
transformer reads off the first of three positions, which see each other: the codes so far, the time, the hidden state.
Source: vllm-omni 0.30.0, `FlowMatchingAudioTransformer`.

Shapes: B frames, A acoustic codebooks, C hidden size, N steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from voice_clone.autoregressive.frame_head import Batch, MadeFrames, NoiseHead, NoMemory, Steps
from voice_clone.batching.source import PayloadForm
from voice_clone.families.voxtral.config import FlowConfig, VoxtralConfig
from voice_clone.families.voxtral.family import CARD
from voice_clone.layers.attention import GatedMLP, RMSNorm, attend, split_heads
from voice_clone.layers.fused import fused_linear

TIME_THETA = 10_000.0  # of the longest wavelength of the time's embedding


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
    """The networks of the head. Their projections may be replaced by native ones.

    Attributes:
        semantic_codebook_output: logits of the end of speech, then of the semantic codes.
    """

    def __init__(self, config: VoxtralConfig) -> None:
        super().__init__()
        flow, audio = config.flow, config.audio
        size, acoustic = flow.dim, audio.n_acoustic_codebook
        self.steps, self.size = flow.n_decoding_steps, size
        self.semantic_codebook_output: nn.Module = nn.Linear(size, 1 + audio.semantic_codebook_size, bias=False)
        self.input_projection: nn.Module = nn.Linear(acoustic, size, bias=False)
        self.time_projection: nn.Module = nn.Linear(size, size, bias=False)
        self.llm_projection: nn.Module = nn.Linear(flow.input_dim, size, bias=False)
        self.layers = nn.ModuleList(FlowLayer(flow) for _ in range(flow.n_layers))
        self.norm = RMSNorm(size, flow.norm_eps)
        self.acoustic_codebook_output: nn.Module = nn.Linear(size, acoustic, bias=False)
        self._times: Tensor | None = None  # made when they are first needed: the weights are loaded then

    def times(self) -> Tensor:
        """The position of the time at each step, [N, C]."""
        if self._times is None:
            like = self.norm.weight
            frequencies = torch.exp(-math.log(TIME_THETA) * torch.arange(self.size // 2) / (self.size // 2))
            angles = torch.arange(self.steps)[:, None] / self.steps * frequencies
            embedded = torch.cat([angles.cos(), angles.sin()], dim=-1).to(like.device, like.dtype)
            self._times = self.time_projection(embedded)
        return self._times

    def velocity(self, x: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        """Where the flow goes: codes so far [B, A], a row of `times`, projected hidden states [B, C] -> [B, A]."""
        rows = torch.stack([self.input_projection(x), time.expand_as(condition), condition], dim=1)
        for number, layer in enumerate(self.layers, start=1):
            rows = layer(rows, 1 if number == len(self.layers) else rows.shape[1])
        velocity: Tensor = self.acoustic_codebook_output(self.norm(rows[:, 0]))
        return velocity

    def flow(self, noise: Tensor, hidden: Tensor, guidance: Tensor) -> Tensor:
        """Noise [B, A], hidden states [B, C], guidance [B, 1] -> where the noise flows, fp32 [B, A]."""
        condition = self.llm_projection(hidden)
        both = torch.cat([condition, torch.zeros_like(condition)])
        x, guidance = noise.to(hidden.dtype), guidance.to(hidden.dtype)
        for time in self.times():
            with_it, without = self.velocity(torch.cat([x, x]), time, both).chunk(2)
            x = x + (guidance * with_it + (1 - guidance) * without) / self.steps
        return x.float()


@dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """What decides the frames of a stream beside its prompt.

    Attributes:
        seed: 64 bits; with the prompt it determines all noise.
        guidance: how far the flow goes from what it would make without the text and the voice to what it makes with
            them (classifier-free guidance, Ho & Salimans 2022); 1: all the way, more: beyond.
    """

    seed: int
    guidance: float = CARD.options[0].default


class FlowHead(NoiseHead):
    """A `voice_clone.autoregressive.frame_head.FrameHead` of codes. Codebook 0 is the semantic one.

    Args:
        networks: on any device.
        config: of the checkpoint.
    """

    dtype = np.int64
    neutral = np.ones(1)
    variants = (Steps(1),)
    keeps_ending_frame = False

    def __init__(self, networks: FlowTransformer, config: VoxtralConfig) -> None:
        self._networks = networks
        self._top_level = config.audio.acoustic_codebook_size - 1
        self.form = PayloadForm(config.codebooks)
        self.draws = config.audio.n_acoustic_codebook

    def columns(self, sampling: SamplingParameters) -> npt.NDArray[np.float64]:
        return np.array([sampling.guidance], np.float64)

    def variant_of(self, columns: npt.NDArray[np.float64]) -> Steps:
        return self.variants[0]

    def make(self, memory: NoMemory, hidden: Tensor, batch: Batch, variant: Steps) -> MadeFrames:
        table = batch.table
        logits = self._networks.semantic_codebook_output(hidden).float()
        finite = logits.isfinite().all(dim=1)
        logits[:, 0].masked_fill_(~table.may_stop, -torch.inf)
        row = logits.argmax(dim=1)  # 0: the end of speech
        x = self._networks.flow(table.draws, hidden, table.sampling)
        finite &= x.isfinite().all(dim=1)
        levels = ((x.clamp(-1, 1) + 1) / 2 * self._top_level).round()
        payload = torch.cat([(row - 1).clamp(min=0)[:, None], levels.nan_to_num().long()], dim=1)
        return MadeFrames(payload, row == 0, finite)
