"""From the backbone's hidden state to a frame: the likeliest semantic code, and acoustic codes by flow matching.

Noise becomes acoustic codes by Euler's method over a learned velocity (Lipman et al. 2023), with classifier-free
guidance: the velocity is extrapolated from that without the hidden state to that with it. The velocity is what a small
transformer reads off the first of three positions, which see each other: the codes so far, the time, the hidden state.
Source: vllm-omni 0.30.0, `FlowMatchingAudioTransformer`. Needs no torch.

Shapes: B frames, A acoustic codebooks, C hidden size, N steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voice_clone.array_kinds import Numbers, cast, fill, in_dtype_of, namespace
from voice_clone.autoregressive.frame_head import Batch, MadeFrames, NoiseHead, NoMemory, Steps
from voice_clone.batching.source import PayloadForm
from voice_clone.families.voxtral.config import VoxtralConfig
from voice_clone.families.voxtral.family import CARD

TIME_THETA = 10_000.0  # of the longest wavelength of the time's embedding

Linear = Callable[[Numbers], Numbers]


def embedded_times(steps: int, size: int) -> npt.NDArray[np.float32]:
    """Cosines and sines of the time of each step, [N, C], before the projection. Each is rounded once."""
    half = size // 2
    frequencies = np.exp(-math.log(TIME_THETA) * np.arange(half) / half)
    angles = np.arange(steps)[:, None] / steps * frequencies
    embedded: npt.NDArray[np.float32] = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return embedded


@dataclass(frozen=True)
class Flow:
    """The way from noise to acoustic codes, by networks of tensors or of arrays.

    Attributes:
        condition: of hidden states, to [B, C].
        noise: of the codes so far [B, A], to [B, C].
        layers: the transformer, [B, 3, C] -> the normed result of the first position [B, C].
        last: of such results, to velocities [B, A].
        times: the position of the time at each step, [N, C].
    """

    condition: Linear
    noise: Linear
    layers: Linear
    last: Linear
    times: Callable[[], Numbers]

    def __call__(self, noise: Numbers, hidden: Numbers, guidance: Numbers) -> Numbers:
        """Noise [B, A], hidden states [B, C], guidance [B, 1] -> where the noise flows, fp32 [B, A]."""
        kind, count, times = namespace(hidden), len(hidden), self.times()
        condition = self.condition(hidden)
        both = kind.concatenate([condition, kind.zeros_like(condition)])
        x, guidance = in_dtype_of(hidden, noise), in_dtype_of(hidden, guidance)
        for time in times:
            twice = self.noise(kind.concatenate([x, x]))
            rows = kind.stack([twice, kind.broadcast_to(time, both.shape), both], 1)
            velocity = self.last(self.layers(rows))
            with_it, without = velocity[:count], velocity[count:]
            x = x + (guidance * with_it + (1 - guidance) * without) / len(times)
        return cast(x, np.float32)


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
        config: of the checkpoint.
        semantic: logits of the end of speech, then of the semantic codes, of hidden states.
        flow: makes the acoustic codes.

    Attributes:
        semantic, flow: these.
    """

    dtype = np.int64
    neutral = np.ones(1)
    variants = (Steps(1),)
    keeps_ending_frame = False

    def __init__(self, config: VoxtralConfig, semantic: Linear, flow: Flow) -> None:
        self.semantic, self.flow = semantic, flow
        self._top_level = config.audio.acoustic_codebook_size - 1
        self.form = PayloadForm(config.codebooks)
        self.draws = config.audio.n_acoustic_codebook

    def columns(self, sampling: SamplingParameters) -> npt.NDArray[np.float64]:
        return np.array([sampling.guidance], np.float64)

    def variant_of(self, columns: npt.NDArray[np.float64]) -> Steps:
        return self.variants[0]

    def make(self, memory: NoMemory, hidden: Numbers, batch: Batch, variant: Steps) -> MadeFrames:
        table, kind = batch.table, namespace(hidden)
        logits = cast(self.semantic(hidden), np.float32)
        finite = kind.isfinite(logits).all(1)
        fill(logits[:, 0], -math.inf, ~table.may_stop)
        row = logits.argmax(1)  # 0: the end of speech
        x = self.flow(table.draws, hidden, table.sampling)
        finite = finite & kind.isfinite(x).all(1)
        levels = ((x.clip(-1, 1) + 1) / 2 * self._top_level).round()
        acoustic = cast(kind.nan_to_num(levels), np.int64)
        return MadeFrames(kind.concatenate([(row - 1).clip(0)[:, None], acoustic], 1), row == 0, finite)
