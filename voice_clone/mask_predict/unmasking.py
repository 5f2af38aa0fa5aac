"""Which masked cells become codes in a step, and which codes: confidence, guidance, noise.

An utterance is a table of cells, K codebooks by T frames. All are masked at first. A step predicts all cells at once;
those of which it is most confident keep their codes, the others stay masked (Chang et al., "MaskGIT", CVPR 2022).
Guidance, penalty and noise are those of the official code of OmniVoice 0.2.1, `models/` (`_generate_iterative`,
`_predict_tokens_with_scoring`).

Shapes: K codebooks, T frames, V codes of a codebook and the mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voice_clone.autoregressive.philox import philox4x32
from voice_clone.errors import InvalidArgument
from voice_clone.layers.graphs import to_device

KEPT = 0.1  # share of the codes among which a class is drawn
TINY = 1e-10  # keeps logarithms finite
POSITIONS, CLASSES = 0, 1  # kinds of draws


@dataclass(frozen=True, kw_only=True)
class Unmasking:
    """How an utterance is unmasked; the defaults are the official ones.

    Attributes:
        seed: 64 bits; with the prompt it determines all draws.
        steps: in which all cells become codes.
        shift: below 1 the first steps unmask fewer cells, and the last ones more.
        guidance: how far the logits are moved from those without a prompt; 0 leaves these out.
        layer_penalty: by how much a codebook comes later than the one before it.
        position_temperature: of the draw of the cells; 0 takes the most confident ones.
        class_temperature: of the draw of a cell's code among the likeliest; 0 takes the likeliest.

    Raises:
        InvalidArgument: on construction, if a value is out of range.
    """

    seed: int
    steps: int = 32
    shift: float = 0.1
    guidance: float = 2.0
    layer_penalty: float = 5.0
    position_temperature: float = 5.0
    class_temperature: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= 1000:
            raise InvalidArgument(f"the number of steps is {self.steps}; it must lie in 1..1000")
        if not 0.0 < self.shift <= 100.0:
            raise InvalidArgument(f"the time shift is {self.shift}; it must lie in (0, 100]")
        for name, most in (("guidance", 100), ("layer_penalty", 1000)):
            if not 0.0 <= getattr(self, name) <= most:
                raise InvalidArgument(f"{name} is {getattr(self, name)}; it must lie in [0, {most}]")
        for name in ("position_temperature", "class_temperature"):
            if not (getattr(self, name) == 0.0 or 1e-3 <= getattr(self, name) <= 1000):
                raise InvalidArgument(f"{name} is {getattr(self, name)}; it must be 0 or lie in [0.001, 1000]")

    def schedule(self, cells: int) -> list[tuple[int, int]]:
        """The steps that unmask anything, as their numbers and how many of so many cells they unmask."""
        even = torch.linspace(0.0, 1.0, self.steps + 1, device="cpu")
        times = (self.shift * even / (1 + (self.shift - 1) * even)).tolist()
        left, found = cells, []
        for step in range(self.steps):
            wanted = left if step == self.steps - 1 else math.ceil(cells * (times[step + 1] - times[step]))
            count = min(wanted, left)
            if count > 0:
                found.append((step, count))
                left -= count
        return found


def uniforms(seed: int, utterance: int, step: int, kind: int, count: int) -> NDArray[np.float32]:
    """So many numbers in [0, 1): float32 [count], multiples of 2**-24.

    They are a pure function of the arguments: Philox with `seed` as its key and the others as its counter, which gives
    four numbers at once.

    Args:
        utterance: of the stream.
        step: of the utterance.
        kind: `POSITIONS` or `CLASSES`.
    """
    counter = np.zeros((-(-count // 4), 4), np.uint64)
    counter[:, 0] = np.arange(len(counter), dtype=np.uint64)
    counter[:, 1:] = step, utterance, kind
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint64)
    made = philox4x32(counter, key).reshape(-1)[:count]
    return (made >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)


def noisy(scores: Tensor, temperature: float, uniform: NDArray[np.float32]) -> Tensor:
    """Scores with Gumbel noise: the largest one is then a draw at this temperature."""
    drawn = to_device(torch.from_numpy(uniform).view(scores.shape), scores.device)
    return scores / temperature - torch.log(-torch.log(drawn + TINY) + TINY)


def unmask(
    codes: Tensor, logits: Tensor, unguided: Tensor | None, how: Unmasking, utterance: int, step: int, count: int
) -> Tensor:
    """One step: fill so many cells of `codes` in place. Waits for no GPU.

    Args:
        codes: int64 [K, T]; the mask is V - 1.
        logits: fp32 [K, T, V], with the prompt.
        unguided: likewise without it; None: there is no guidance.
        count: masked cells to fill, of all that are left.

    Returns:
        bool [], whether all logits were finite.
    """
    mask = logits.shape[-1] - 1
    likely = torch.log_softmax(logits, dim=-1)
    if unguided is not None:
        likely = torch.log_softmax(likely + how.guidance * (likely - torch.log_softmax(unguided, dim=-1)), dim=-1)
    finite = likely.isfinite().all()
    likely[..., mask] = -torch.inf
    best, found = likely.max(dim=-1)
    if how.class_temperature > 0.0:
        kept, where = likely.topk(math.ceil(KEPT * likely.shape[-1]), dim=-1)
        kept = torch.full_like(likely, -torch.inf).scatter_(-1, where, kept)
        drawn = uniforms(how.seed, utterance, step, CLASSES, likely.numel())
        found = noisy(kept, how.class_temperature, drawn).argmax(dim=-1)
    layers = torch.arange(len(codes), device=codes.device)[:, None]
    scores = best - layers * how.layer_penalty
    if how.position_temperature > 0.0:
        drawn = uniforms(how.seed, utterance, step, POSITIONS, scores.numel())
        scores = noisy(scores, how.position_temperature, drawn)
    chosen = scores.masked_fill(codes != mask, -torch.inf).flatten().topk(count).indices
    codes.view(-1)[chosen] = found.flatten()[chosen]
    return finite
