"""From the sentences of a job to its file: parts with their tempo, loudness and silences, in the format asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from voice_clone_client import Chunk
from voice_clone_sound.joined_parts import JoinedParts

from ..schemas import SpeechRequest
from ..speech.synthesis import encoder
from .plan import JobPlan

Read = Callable[[str], tuple[NDArray[np.float32], int]]
"""Reads a sentence by its address: samples and their rate."""


@dataclass(frozen=True)
class Assembled:
    """A file."""

    seconds: float
    media_type: str
    segments: Sequence[Mapping[str, Any]]
    """Where its parts are; see `JoinedParts.info`."""


class Stopped(Exception):
    """It was stopped before its end."""


def assemble(
    plan: JobPlan,
    request: SpeechRequest,
    addresses: Sequence[str],
    gains: Sequence[np.float32],
    read: Read,
    path: Path,
    comment: str | None,
    stopped: Callable[[], bool],
) -> Assembled:
    """Write the file of a job. It takes a second for minutes of sound, so it has a thread.

    Args:
        request: says the format.
        addresses: of the sentences in their order.
        gains: factor of the samples, for each of the plan's ways.
        path: of the new file.
        comment: for its tags.
        stopped: whether to stop.

    Raises:
        Stopped: it was.
        Missing: as `read`.
    """
    joined, ahead = JoinedParts(plan.joined), iter(addresses)
    out = None
    for part in plan.parts:
        for _ in part.sentences:
            if stopped():
                raise Stopped
            samples, rate = read(next(ahead))
            chunk = joined.take(Chunk(samples * gains[part.way], rate, 0, False, None))
            if out is None:
                out = encoder(request, rate, 1.0, streaming=False, comment=comment, path=path)
            out.encode(chunk.samples)
        assert out is not None  # each part has a sentence
        out.encode(joined.end().samples)
    assert out is not None
    out.finish()
    return Assembled(out.seconds, out.media_type, joined.info["segments"])
