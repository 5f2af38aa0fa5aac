"""A speech at another speed and loudness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
from voice_clone_client.types import Chunk

from .limiter import Limiter
from .tempo import Tempo


def shaped(chunks: Iterable[Chunk], speed: float, gain: Callable[[Chunk], np.float32] | None) -> Iterator[Chunk]:
    """The chunks of a speech, with the samples that the gateway makes of them.

    Args:
        speed: see `Tempo`.
        gain: finds the factor of the samples by the first chunk; None changes no loudness.
    """
    steps: list[Tempo | Limiter] | None = None
    factor = np.float32(1.0)
    for chunk in chunks:
        if steps is None:
            steps = [] if speed == 1.0 else [Tempo(chunk.sample_rate, speed)]
            if gain is not None:
                factor = gain(chunk)
                steps.append(Limiter(chunk.sample_rate))
        samples = chunk.samples if factor == 1.0 else chunk.samples * factor
        for step in steps:
            samples = step.push(samples, chunk.final)
        yield replace(chunk, samples=samples)
