"""A family in this process, without server, engine and chunks: what the server's speech must equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from voice_clone.stages.protocols import StreamPlan


@dataclass(frozen=True, eq=False)
class Spoken:
    """Codes int32 [frames, codebooks], samples float32, and why the stream ended."""

    codes: NDArray[np.int32]
    samples: NDArray[np.float32]
    finish: str


def speak(generator: Any, decoder: Any, plan: StreamPlan[Any]) -> Spoken:
    """The codes of a planned stream, and their decode in one piece."""
    generator.start(0, plan.request)
    frames, finish = [], None
    while finish is None:
        [frame] = generator.step([0])
        finish = frame.finish
        frames += [] if frame.payload is None else [frame.payload]
    generator.free(0)
    codes = generator.payload.join(frames)
    return Spoken(codes, decode_whole(decoder, codes, plan), finish)


def decode_whole(decoder: Any, codes: NDArray[np.int32], plan: StreamPlan[Any]) -> NDArray[np.float32]:
    """Codes [frames, codebooks], in the voice of `plan` if the decoder needs it, in one piece."""
    if not len(codes):
        return np.zeros(0, np.float32)
    state = decoder.new_state(1)
    if plan.voice:
        decoder.condition(state, plan.voice)
    samples: NDArray[np.float32] = decoder.decode_chunk(torch.from_numpy(codes.T[None].astype(np.int64)), state)[0]
    return np.asarray(samples)
