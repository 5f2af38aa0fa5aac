"""Runs the shapes that requests will bring, so that the first request finds memory, kernels and threads ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.autoregressive.talker import TalkerRequest

P = TypeVar("P")

FRAMES = 2  # the first needs no talker step, the second does
REFERENCE_FRAMES = (0, 64, 192)  # no reference, a short one, a long one

Example = Callable[[int, int], TalkerRequest[P]]
"""(frames of the reference, at most; max_frames) -> a request of any content."""


def warm_up(generator: Generator[P], example: Example[P], prefill_chunk: int, seconds: float) -> float:
    """Prefill prompts of a few lengths, and step 1, 2, ... all slots together. Leaves the generator empty.

    Native code is the same for all shapes: there one slot and a short prompt are enough.

    Args:
        generator: without streams.
        example: makes the requests.
        prefill_chunk: positions of a prompt that are read at once, as the engine will do it.
        seconds: stop between two steps once this has passed. CUDA graphs are recorded first, in any case.

    Returns: the seconds that it took.
    """
    started = time.monotonic()
    generator.prepare()
    began = time.monotonic()
    native = isinstance(generator.talker.stack, NativeStack)
    for slot in range(1 if native else generator.slots):
        request = example(REFERENCE_FRAMES[slot % len(REFERENCE_FRAMES)], FRAMES * generator.slots + 1)
        request = replace(request, endless=True)  # a model may end such speech before all slots have been stepped
        if time.monotonic() - began > seconds:
            break
        left = generator.start(slot, request)
        while left:
            count = min(left, prefill_chunk)
            generator.prefill({slot: count})
            left -= count
        for _ in range(FRAMES):
            generator.step(range(slot + 1))
    generator.reset()
    return time.monotonic() - started
