"""The times of a speech, part by part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MEASURES = ("first_audio", "prefill", "frame", "code2wav", "total")  # the times of `Spent`


@dataclass(frozen=True)
class Spent:
    """Seconds of one speech, or of several side by side.

    Attributes:
        first_audio: to the first samples.
        prefill: of the prompt.
        frame: a step of the talker and one of the code predictor, the first frame left out.
        code2wav: of the codec decoder.
        total: of all.
        decoded: no time: frames that code2wav decoded of each speech; those of the reference count where it did.
    """

    first_audio: float
    prefill: float
    frame: float
    code2wav: float
    total: float
    decoded: int


@contextmanager
def clock(spent: dict[str, float], name: str) -> Iterator[None]:
    """Adds the seconds within to `spent[name]`."""
    began = time.perf_counter()
    yield
    spent[name] += time.perf_counter() - began
