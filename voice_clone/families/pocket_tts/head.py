"""From the backbone's hidden state to a frame of latents, by a small network that turns noise into it.

An MLP whose norms are scaled and shifted by the hidden state. It makes a frame at once (`drifting`), the way from the
noise to it (`pointwise`), or the way from one time to another, in one step or several (`lsd`: Lagrangian self
distillation, Boffi et al. 2025). Source: pocket-tts 4.0.1, `modules/mlp.py` and `models/flow_lm.py`.

Shapes: B frames, Z size of the hidden state, D size of the network, W numbers of a frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.autoregressive.frame_head import Batch, MadeFrames, NoiseHead, NoMemory, Steps
from voice_clone.batching.source import PayloadForm
from voice_clone.families.pocket_tts.config import HeadConfig, PocketConfig
from voice_clone.families.pocket_tts.family import CARD
from voice_clone.layers.fused import fused_linear

MOST_STEPS = int(CARD.options[0].most or 1)
FREQUENCIES = 256  # numbers of a time, before the network
EPS, TIME_EPS = 1e-6, 1e-5


@dataclass(frozen=True)
class SamplingParameters:
    """How a stream's frames are drawn.

    Attributes:
        seed: 64 bits; with the prompt it determines all noise.
        do_sample: whether there is noise.
        temperature: its variance.
        steps: of a frame.
        end_threshold: logit above which speech ends.
    """

    seed: int
    do_sample: bool
    temperature: float
    steps: int
    end_threshold: float


class Scaled(nn.Module):
    """The last part of a time's embedding: divided by its standard deviation, the mean stays. Names are official."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.alpha * torch.rsqrt(TIME_EPS + x.var(dim=-1, keepdim=True))


class TimeEmbedding(nn.Module):
    """[N, 1] -> [N, D]. Names are official."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.freqs = nn.Parameter(torch.zeros(FREQUENCIES // 2))
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, size), nn.SiLU(), nn.Linear(size, size), Scaled(size))

    def forward(self, times: Tensor) -> Tensor:
        angles = times * self.freqs
        rows: Tensor = self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1))
        return rows


class Block(nn.Module):
    """A residual block. Names are official."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.in_ln = nn.LayerNorm(size, eps=EPS)
        self.mlp = nn.Sequential(nn.Linear(size, size), nn.SiLU(), nn.Linear(size, size))

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor, gate: Tensor) -> Tensor:
        branch: Tensor = self.mlp(self.in_ln(x) * (1 + scale) + shift)
        return x + gate * branch


class FlowNetwork(nn.Module):
    """The network. Names are official; all that depends on the hidden state is one product."""

    def __init__(self, config: HeadConfig, frame: int, hidden: int) -> None:
        super().__init__()
        size = config.dim
        self.kind, self.size = config.type, size
        self.cond_embed: nn.Module = nn.Linear(hidden, size)
        self.input_proj: nn.Module = nn.Linear(frame, size)
        self.res_blocks = nn.ModuleList(Block(size) for _ in range(config.depth))
        self.final_layer = nn.ModuleDict({"linear": nn.Linear(size, frame)})
        parts = {f"res_blocks.{number}.adaLN_modulation.1": 3 * size for number in range(config.depth)}
        parts["final_layer.adaLN_modulation.1"] = 2 * size
        self.modulation: nn.Module = fused_linear(self, "modulation", size, parts, bias=True)
        self.time_embed = nn.ModuleList(TimeEmbedding(size) for _ in range(2 if config.type == "lsd" else 0))
        self._times: tuple[Tensor, Tensor] | None = None  # made when they are first needed: the weights are loaded then

    def forward(self, condition: Tensor, z: Tensor) -> Tensor:
        """`cond_embed` of the hidden states, plus those of the times [B, D], and [B, W] -> [B, W]."""
        shifts = self.modulation(F.silu(condition)).split(condition.shape[-1], dim=-1)
        x = self.input_proj(z)
        for number, block in enumerate(self.res_blocks):
            x = block(x, *shifts[3 * number : 3 * number + 3])
        shift, scale = shifts[-2:]
        normed = F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale) + shift
        out: Tensor = self.final_layer["linear"](normed)
        return out

    def frames(self, hidden: Tensor, noise: Tensor, steps: Tensor, calls: int) -> Tensor:
        """[B, Z] and noise [B, W] -> [B, W].

        Args:
            steps: int64 [B], of each frame.
            calls: of the network; those of a frame that are behind its steps change nothing.
        """
        condition, z = self.cond_embed(hidden), noise.to(hidden.dtype)
        if self.kind != "lsd":
            made: Tensor = self(condition, z)
            return made if self.kind == "drifting" else z + made
        rows, lengths = self.times()
        rows, lengths = rows[steps], lengths[steps]
        for call in range(calls):
            z = z + self(condition + rows[:, call], z) * lengths[:, call, None]
        return z

    @torch.inference_mode()
    def times(self) -> tuple[Tensor, Tensor]:
        """For each number of steps and each of them: the row of its two times [n, n, D], and its length [n, n].

        A CPU computes them, in fp32, for every device.
        """
        if self._times is None:
            like = next(self.time_embed.parameters())
            first, second = (each.to("cpu", torch.float32) for each in self.time_embed)
            rows = torch.zeros(MOST_STEPS + 1, MOST_STEPS, self.size)
            lengths = torch.zeros(MOST_STEPS + 1, MOST_STEPS)
            for steps in range(1, MOST_STEPS + 1):
                begins = torch.arange(steps)[:, None] / steps
                rows[steps, :steps] = (first(begins) + second((torch.arange(steps)[:, None] + 1) / steps)) / 2
                lengths[steps, :steps] = 1 / steps
            self._times = rows.to(like.device, like.dtype), lengths.to(like.device, like.dtype)
        return self._times


class LatentHead(NoiseHead):
    """A `voice_clone.autoregressive.frame_head.FrameHead` of latents.

    Args:
        talker: has the networks `z_proj`, `out_eos` and `flow_net`.
    """

    dtype = np.float32
    keeps_ending_frame = False

    def __init__(self, talker: Any, config: PocketConfig) -> None:
        self._talker = (talker,)  # a tuple: not a part of the talker's own
        self.draws = config.mimi.quantizer.dimension
        self.form = PayloadForm(self.draws, np.float32)
        self.neutral = np.array([1.0, 0.0, config.default_eos_threshold])
        calls = (1, 4, MOST_STEPS) if config.flow_lm.flow.type == "lsd" else (1,)
        self.variants = tuple(Steps(most) for most in calls)

    def columns(self, sampling: SamplingParameters) -> npt.NDArray[np.float64]:
        return np.array([sampling.steps, sampling.temperature**0.5 * sampling.do_sample, sampling.end_threshold])

    def variant_of(self, columns: npt.NDArray[np.float64]) -> Steps:
        return Steps(int(columns[:, 0].max()))

    def make(self, memory: NoMemory, hidden: Tensor, batch: Batch, variant: Steps) -> MadeFrames:
        [talker], table = self._talker, batch.table
        steps, scale, threshold = torch.split(table.sampling, 1, dim=1)
        hidden = hidden if talker.z_proj is None else talker.z_proj(hidden)
        payload = talker.flow_net.frames(hidden, table.draws.float() * scale, steps[:, 0].long(), variant.most).float()
        logits = talker.out_eos(hidden).float()
        finite = payload.isfinite().all(dim=1) & logits.isfinite().all(dim=1)
        return MadeFrames(payload, (logits > threshold)[:, 0] & table.may_stop, finite)
