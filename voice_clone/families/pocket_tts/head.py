"""From the backbone's hidden state to a frame of latents, by a small network that turns noise into it. Needs no torch.

An MLP whose norms are scaled and shifted by the hidden state. It makes a frame at once (`drifting`), the way from the
noise to it (`pointwise`), or the way from one time to another, in one step or several (`lsd`: Lagrangian self
distillation, Boffi et al. 2025). Source: pocket-tts 4.0.1, `modules/mlp.py` and `models/flow_lm.py`.

Shapes: B frames, Z size of the hidden state, D size of the network, W numbers of a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voice_clone.array_kinds import Numbers, cast, namespace
from voice_clone.autoregressive.frame_head import Batch, MadeFrames, NoiseHead, NoMemory, Steps
from voice_clone.batching.source import PayloadForm
from voice_clone.families.pocket_tts.config import PocketConfig
from voice_clone.families.pocket_tts.family import CARD
from voice_clone.native.silu import silu

MOST_STEPS = int(CARD.options[0].most or 1)
EPS, TIME_EPS = 1e-6, 1e-5

Linear = Callable[[Numbers], Numbers]
Floats = npt.NDArray[np.float32]


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


@dataclass(frozen=True)
class Block:
    """A residual block.

    Attributes:
        norm: weight and bias [D].
        linears: the two of its MLP.
    """

    norm: tuple[Numbers, Numbers]
    linears: tuple[Linear, Linear]


@dataclass(frozen=True)
class Flow:
    """The network, of tensors or of arrays.

    Attributes:
        kind: as of `HeadConfig`.
        condition: of hidden states.
        modulation: all that depends on `condition`: three times D of each block, and twice D.
        noise: [B, W] -> [B, D].
        blocks: one after the other.
        last: [B, D] -> [B, W].
        times: of `lsd`, those of `time_table`.
    """

    kind: str
    condition: Linear
    modulation: Linear
    noise: Linear
    blocks: Sequence[Block]
    last: Linear
    times: Callable[[], tuple[Numbers, Numbers]]

    def __call__(self, hidden: Numbers, noise: Numbers, steps: Numbers, calls: int) -> Numbers:
        """[B, Z] and noise [B, W] -> [B, W].

        Args:
            steps: int64 [B], of each frame.
            calls: of the network; those of a frame that are behind its steps change nothing.
        """
        condition, z = self.condition(hidden), noise
        if self.kind != "lsd":
            made = self._moved(condition, z)
            return made if self.kind == "drifting" else z + made
        rows, lengths = self.times()
        rows, lengths = rows[steps], lengths[steps]
        for call in range(calls):
            z = z + self._moved(condition + rows[:, call], z) * lengths[:, call, None]
        return z

    def _moved(self, condition: Numbers, z: Numbers) -> Numbers:
        """`condition` with the rows of the times [B, D], and [B, W] -> [B, W]."""
        all_shifts, size = self.modulation(silu(condition)), condition.shape[-1]
        shifts = [all_shifts[:, begin : begin + size] for begin in range(0, all_shifts.shape[-1], size)]
        x = self.noise(z)
        for block, place in zip(self.blocks, range(0, len(shifts), 3), strict=False):
            shift, scale, gate = shifts[place : place + 3]
            first, second = block.linears
            x = x + gate * second(silu(first(normed(x, *block.norm) * (1 + scale) + shift)))
        shift, scale = shifts[-2:]
        return self.last(normed(x) * (1 + scale) + shift)


def normed(x: Numbers, weight: Numbers | None = None, bias: Numbers | None = None) -> Numbers:
    """Layer normalisation of [B, D] (Ba et al. 2016)."""
    if isinstance(x, np.ndarray):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(EPS))
        return x if weight is None else x * weight + bias
    from torch.nn import functional as F

    return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)


@dataclass(frozen=True)
class TimeWeights:
    """What makes a row [D] of a time: frequencies, two linear layers with their biases, and a scale [D]."""

    frequencies: Floats
    first: tuple[Floats, Floats]
    second: tuple[Floats, Floats]
    scale: Floats

    def rows(self, times: Floats) -> Floats:
        """[N] -> [N, D]. They are divided by their standard deviation, their mean stays."""
        angles = times[:, None] * self.frequencies
        rows = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) @ self.first[0].T + self.first[1]
        rows = silu(rows) @ self.second[0].T + self.second[1]
        made: Floats = rows * self.scale / np.sqrt(np.float32(TIME_EPS) + rows.var(axis=1, ddof=1, keepdims=True))
        return made


def time_table(first: TimeWeights, second: TimeWeights) -> tuple[Floats, Floats]:
    """For each number of steps and each of them: the row of its two times [n, n, D], and its length [n, n]."""
    rows = np.zeros((MOST_STEPS + 1, MOST_STEPS, len(first.scale)), np.float32)
    lengths = np.zeros((MOST_STEPS + 1, MOST_STEPS), np.float32)
    for steps in range(1, MOST_STEPS + 1):
        times = np.arange(steps + 1, dtype=np.float32) / np.float32(steps)
        rows[steps, :steps] = (first.rows(times[:-1]) + second.rows(times[1:])) / 2
        lengths[steps, :steps] = 1 / steps
    return rows, lengths


class LatentHead(NoiseHead):
    """A `voice_clone.autoregressive.frame_head.FrameHead` of latents.

    Args:
        config: of the checkpoint.
        narrow: of hidden states, before all else; None: nothing.
        flow: makes frames.
        end: the logit of the end of speech [B, 1].
    """

    dtype = np.float32
    keeps_ending_frame = False

    def __init__(self, config: PocketConfig, narrow: Linear | None, flow: Flow, end: Linear) -> None:
        self._narrow, self._flow, self._end = narrow, flow, end
        self.draws = config.mimi.quantizer.dimension
        self.form = PayloadForm(self.draws, np.float32)
        self.neutral = np.array([1.0, 0.0, config.default_eos_threshold])
        calls = (1, 4, MOST_STEPS) if flow.kind == "lsd" else (1,)
        self.variants = tuple(Steps(most) for most in calls)

    def columns(self, sampling: SamplingParameters) -> npt.NDArray[np.float64]:
        return np.array([sampling.steps, sampling.temperature**0.5 * sampling.do_sample, sampling.end_threshold])

    def variant_of(self, columns: npt.NDArray[np.float64]) -> Steps:
        return Steps(int(columns[:, 0].max()))

    def make(self, memory: NoMemory, hidden: Numbers, batch: Batch, variant: Steps) -> MadeFrames:
        table, isfinite = batch.table, namespace(hidden).isfinite
        steps, scale, threshold = (table.sampling[:, place : place + 1] for place in range(3))
        hidden = hidden if self._narrow is None else self._narrow(hidden)
        noise = cast(table.draws, np.float32) * scale
        payload = cast(self._flow(hidden, noise, cast(steps[:, 0], np.int64), variant.most), np.float32)
        logits = cast(self._end(hidden), np.float32)
        finite = isfinite(payload).all(1) & isfinite(logits).all(1)
        return MadeFrames(payload, (logits > threshold)[:, 0] & table.may_stop, finite)
