"""From the language models' results to a frame of latents, by diffusion, and whether speech ends with it.

Euler's method turns noise into a frame, along a learned velocity (Lipman et al. 2023) with classifier-free guidance:
the velocity without the language models' results is scaled to fit the one with them, and the first step changes nothing
(CFG-Zero*, Fan et al. 2025). A small transformer, whose rows all see each other, computes the velocity from the frame
so far. Source: voxcpm 2.0.3, `UnifiedCFM` and `VoxCPMLocDiTV2`. Needs no torch.

Shapes: B frames, C size of the transformer, W numbers of a frame, W = latents * channels, n steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voice_clone.array_kinds import Numbers, cast, in_dtype_of, namespace
from voice_clone.autoregressive.frame_head import Batch, MadeFrames, NoiseHead, NoMemory, Steps
from voice_clone.batching.source import PayloadForm
from voice_clone.families.voxcpm2.audio_vae_config import LATENT_SIZE, LATENTS, WIDTH
from voice_clone.families.voxcpm2.networks.language_models import LanguageModels, Linear
from voice_clone.families.voxcpm2.options import CFG, MOST_STEPS, STEPS

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


@dataclass(frozen=True)
class Sampler:
    """The networks of the head, of tensors or of arrays.

    Attributes:
        base, residual: of each language model's results, to [B, C].
        before: of the latents of the frame before, to a row each.
        now: of the latents of the frame so far, to a row each.
        layers: the transformer, [B, R, C] -> [B, R, C].
        last: of rows, to latents.
        times: as of `times.time_table`.
        stops: the base model's results -> logits that speech goes on and that it ends, [B, 2].
    """

    base: Linear
    residual: Linear
    before: Linear
    now: Linear
    layers: Linear
    last: Linear
    times: Callable[[], tuple[Numbers, Numbers]]
    stops: Linear

    def frames(
        self, noise: Numbers, given: tuple[Numbers, Numbers, Numbers], steps: Numbers, cfg: Numbers, calls: int
    ) -> Numbers:
        """Where the noise flows, fp32 [B, W].

        Args:
            noise: [B, latents, channels].
            given: as of `LanguageModels.parts`.
            steps: int64 [B], of each frame.
            cfg: [B, 1].
            calls: of the transformer; those of a frame that are behind its steps change nothing.
        """
        hidden, made, last = given
        kind, batch = namespace(hidden), len(hidden)

        def twice(rows: Numbers) -> Numbers:
            return kind.concatenate([rows, rows])

        results = kind.stack([self.base(hidden), self.residual(made)], 1)
        results = kind.concatenate([results, kind.zeros_like(results)])
        before = twice(self.before(last.reshape(-1, LATENTS, LATENT_SIZE)))
        rows, lengths = self.times()
        rows, lengths = rows[steps], lengths[steps]
        x = in_dtype_of(hidden, noise)
        for call in range(calls):
            seen = kind.concatenate([results, twice(rows[:, call, None]), before, self.now(twice(x))], 1)
            velocity = self.last(self.layers(seen)[:, -LATENTS:])
            both = cast(velocity.reshape(2 * batch, WIDTH), np.float32)
            aimed, free = both[:batch], both[batch:]
            scale = ((aimed * free).sum(1) / ((free * free).sum(1) + SMALL))[:, None]
            guided = free * scale + cfg * (aimed - free * scale)
            x = x - in_dtype_of(x, (lengths[:, call, None] * guided).reshape(x.shape))
        return cast(x.reshape(batch, WIDTH), np.float32)


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

    def make(self, memory: NoMemory, hidden: Numbers, batch: Batch, variant: Steps) -> MadeFrames:
        table, given, isfinite = batch.table, self._models.parts(hidden), namespace(hidden).isfinite
        steps, cfg, temperature = (table.sampling[:, place : place + 1] for place in range(3))
        # A latent's channels lie one after the other in a frame, a channel's latents in the official noise.
        noise = cast(table.draws.reshape(-1, LATENT_SIZE, LATENTS).swapaxes(1, 2), np.float32) * temperature[:, :, None]
        payload = self._networks.frames(noise, given, cast(steps[:, 0], np.int64), cfg, variant.most - 1)
        logits = cast(self._networks.stops(given[0]), np.float32)
        finite = isfinite(payload).all(1) & isfinite(logits).all(1)
        return MadeFrames(payload, (logits.argmax(1) == 1) & table.may_stop, finite)
