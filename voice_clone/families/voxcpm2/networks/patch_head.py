"""From the language models' results to a frame of latents, by diffusion, and whether speech ends with it.

Euler's method turns noise into a frame, along a learned velocity (Lipman et al. 2023) with classifier-free guidance:
the velocity without the language models' results is scaled to fit the one with them, and the first step changes nothing
(CFG-Zero*, Fan et al. 2025). A small transformer, whose rows all see each other, computes the velocity from the frame
so far. Source: voxcpm 2.0.3, `UnifiedCFM` and `VoxCPMLocDiTV2`.

Shapes: B frames, C size of the transformer, W numbers of a frame, W = latents * channels, n steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.autoregressive.frame_head import Batch, MadeFrames, NoiseHead, NoMemory, Steps
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.batching.source import PayloadForm
from voice_clone.families.voxcpm2.audio_vae_config import LATENT_SIZE, LATENTS, WIDTH
from voice_clone.families.voxcpm2.config import VoxCPM2Config
from voice_clone.families.voxcpm2.networks.language_models import LanguageModels, local_stack_config
from voice_clone.families.voxcpm2.options import CFG, LEAST_STEPS, MOST_STEPS, STEPS

TIME_SCALE, LONGEST = 1000, 10_000  # of the time's embedding
SMALL = 1e-8  # keeps a quotient finite


@dataclass(frozen=True)
class SamplingParameters:
    """How a stream's frames are drawn.

    Attributes:
        seed: 64 bits; with the prompt it determines all noise.
        cfg_value: how far a frame goes from what it would be without text and voice to what it is with them; 1: all the
            way, more: beyond.
        inference_timesteps: of Euler's method.
        temperature: scales the noise.
    """

    seed: int
    cfg_value: float = CFG
    inference_timesteps: int = STEPS
    temperature: float = 1.0


class TimeMLP(nn.Module):
    """[N, C] -> [N, C]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(size, size)
        self.linear_2 = nn.Linear(size, size)


class LocalDiT(nn.Module):
    """The transformer that reads the velocity. Names are official."""

    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__()
        size = config.dit_config.hidden_dim
        self.in_proj: nn.Module = nn.Linear(LATENT_SIZE, size)
        self.cond_proj: nn.Module = nn.Linear(LATENT_SIZE, size)
        self.out_proj: nn.Module = nn.Linear(size, LATENT_SIZE)
        self.time_mlp = TimeMLP(size)
        self.delta_time_mlp = TimeMLP(size)
        self.decoder = DecoderStack(local_stack_config(config, config.dit_config))
        self.native_decoder: NativeStack | None = None

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """Frames so far [B, latents, channels], the rows before them [B, R, C] -> velocities as x."""
        rows = torch.cat([before, self.in_proj(x)], dim=1)
        hidden = (self.native_decoder or self.decoder).together(rows)
        velocity: Tensor = self.out_proj(hidden[:, -LATENTS:])
        return velocity

    @torch.inference_mode()
    def times(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """For each number of steps n and each of its calls, n - 1: the rows of the time, and how far a step goes.

        The official code computes both in the dtype of its weights, and its model has learned from such numbers: in
        bf16 they are others. A CPU computes them for every device.

        Returns:
            `dtype` [MOST_STEPS + 1, MOST_STEPS - 1, C] and [MOST_STEPS + 1, MOST_STEPS - 1], zeros where a number of
            steps has no such call.
        """
        size = self.time_mlp.linear_1.in_features
        rows = torch.zeros(MOST_STEPS + 1, MOST_STEPS - 1, size, dtype=dtype)
        lengths = torch.zeros(MOST_STEPS + 1, MOST_STEPS - 1, dtype=dtype)
        still = _mlp(self.delta_time_mlp, _embedded(torch.zeros(1, dtype=dtype), size))
        for steps in range(LEAST_STEPS, MOST_STEPS + 1):
            times, lengths[steps, : steps - 1] = _schedule(steps, dtype)
            rows[steps, : steps - 1] = _mlp(self.time_mlp, _embedded(times, size)) + still
        return rows, lengths


def _schedule(steps: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The times of the calls, and how far each goes, [steps - 1] each. The first step makes none: it stands still."""
    span = torch.linspace(1, 0, steps + 1, dtype=dtype, device="cpu")
    span = span + (torch.cos(torch.pi / 2 * span) - 1 + span)
    time, length = span[0], span[0] - span[1]
    times, lengths = [], []
    for step in range(1, steps + 1):
        times.append(time)
        lengths.append(length)
        time = time - length  # rounded again and again, as official
        if step < steps:
            length = time - span[step + 1]
    return torch.stack(times[1:]), torch.stack(lengths[1:])


def _embedded(times: Tensor, size: int) -> Tensor:
    """[N] -> sines and cosines [N, size]."""
    half = size // 2
    places = torch.arange(half, dtype=times.dtype, device="cpu")
    angles = TIME_SCALE * times[:, None] * torch.exp(places * -(math.log(LONGEST) / (half - 1)))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _mlp(mlp: TimeMLP, x: Tensor) -> Tensor:
    first, second = (
        [parameter.to("cpu", x.dtype) for parameter in linear.parameters()] for linear in (mlp.linear_1, mlp.linear_2)
    )
    return F.linear(F.silu(F.linear(x, *first)), *second)


class Sampler(nn.Module):
    """The networks of the head. Names are official."""

    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__()
        size, inner = config.lm_config.hidden_size, config.dit_config.hidden_dim
        self.feat_decoder = nn.ModuleDict({"estimator": LocalDiT(config)})
        self.lm_to_dit_proj: nn.Module = nn.Linear(size, inner)
        self.res_to_dit_proj: nn.Module = nn.Linear(size, inner)
        self.stop_proj: nn.Module = nn.Linear(size, size)
        self.stop_head = nn.Linear(size, 2, bias=False)
        self._times: tuple[Tensor, Tensor] | None = None  # made when they are first needed: the weights are loaded then

    @property
    def estimator(self) -> LocalDiT:
        estimator = self.feat_decoder["estimator"]
        assert isinstance(estimator, LocalDiT)
        return estimator

    def times(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """As of `LocalDiT`, computed in `dtype` the first time, by default that of the weights; fp32 lengths."""
        if self._times is None:
            like = self.stop_head.weight
            rows, lengths = self.estimator.times(dtype or like.dtype)
            self._times = rows.to(like.device, like.dtype), lengths.to(like.device, torch.float32)
        return self._times

    def stops(self, hidden: Tensor) -> Tensor:
        """The base model's results [B, C] -> logits that speech goes on and that it ends, [B, 2]."""
        logits: Tensor = self.stop_head(F.silu(self.stop_proj(hidden)))
        return logits

    def frames(self, noise: Tensor, given: tuple[Tensor, ...], steps: Tensor, cfg: Tensor, calls: int) -> Tensor:
        """Where the noise flows, fp32 [B, W].

        Args:
            noise: [B, latents, channels].
            given: as of `LanguageModels.parts`.
            steps: int64 [B], of each frame.
            cfg: [B, 1].
            calls: of the transformer; those of a frame that are behind its steps change nothing.
        """
        hidden, made, last = given
        estimator, batch = self.estimator, len(hidden)
        results = torch.stack([self.lm_to_dit_proj(hidden), self.res_to_dit_proj(made)], dim=1)
        results = torch.cat([results, torch.zeros_like(results)])
        before = estimator.cond_proj(last.view(-1, LATENTS, LATENT_SIZE)).repeat(2, 1, 1)
        rows, lengths = self.times()
        rows, lengths = rows[steps], lengths[steps]
        x = noise.to(hidden.dtype)
        for call in range(calls):
            time = rows[:, call, None].repeat(2, 1, 1)
            velocity = estimator(x.repeat(2, 1, 1), torch.cat([results, time, before], dim=1))
            aimed, free = velocity.flatten(1).float().split(batch)
            scale = (aimed * free).sum(1, keepdim=True) / ((free * free).sum(1, keepdim=True) + SMALL)
            guided = free * scale + cfg * (aimed - free * scale)
            x = x - (lengths[:, call, None] * guided).view_as(x).to(x.dtype)
        return x.flatten(1).float()


class PatchHead(NoiseHead):
    """A `voice_clone.autoregressive.frame_head.FrameHead` of latents.

    Args:
        networks: on any device.
        models: whose results it gets.
    """

    form = PayloadForm(WIDTH, np.float32)
    dtype = np.float32
    draws = WIDTH
    neutral = np.array([STEPS, CFG, 1.0])
    variants = tuple(Steps(most) for most in (6, STEPS, 20, MOST_STEPS))
    keeps_ending_frame = True

    def __init__(self, networks: Sampler, models: LanguageModels) -> None:
        self._networks = networks
        self._models = models

    def columns(self, sampling: SamplingParameters) -> npt.NDArray[np.float64]:
        return np.array([sampling.inference_timesteps, sampling.cfg_value, sampling.temperature], np.float64)

    def variant_of(self, columns: npt.NDArray[np.float64]) -> Steps:
        return Steps(int(columns[:, 0].max()))

    def make(self, memory: NoMemory, hidden: Tensor, batch: Batch, variant: Steps) -> MadeFrames:
        table, given = batch.table, self._models.parts(hidden)
        steps, cfg, temperature = torch.split(table.sampling, 1, dim=1)
        # A latent's channels lie one after the other in a frame, a channel's latents in the official noise.
        noise = table.draws.view(-1, LATENT_SIZE, LATENTS).transpose(1, 2).float() * temperature[:, :, None]
        payload = self._networks.frames(noise, given, steps[:, 0].long(), cfg, variant.most - 1)
        logits = self._networks.stops(given[0]).float()
        finite = payload.isfinite().all(dim=1) & logits.isfinite().all(dim=1)
        return MadeFrames(payload, (logits.argmax(dim=1) == 1) & table.may_stop, finite)
