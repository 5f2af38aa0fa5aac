"""Runs the shapes that requests will bring, so that the first request finds memory, kernels and threads ready."""

from __future__ import annotations

import time

import numpy as np

from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.sampling import SamplingParameters
from voice_clone.families.qwen3_tts.prompt import ROLE_LENGTH, Prompt
from voice_clone.families.qwen3_tts.talker_request import TalkerRequest

FRAMES = 2  # the first needs no talker step, the second does
REFERENCE_FRAMES = (0, 64, 192)  # x-vector mode; reference clips of 5 and 15 s


def warm_up(generator: Generator, prefill_chunk: int, seconds: float) -> float:
    """Prefill prompts of a few lengths, and step 1, 2, ... all slots together. Leaves the generator empty.

    Args:
        generator: without streams.
        prefill_chunk: positions of a prompt that are read at once, as the engine will do it.
        seconds: stop between two steps once this has passed. CUDA graphs are recorded first, however long it takes.

    Returns: the seconds that it took.
    """
    started = time.monotonic()
    generator.prepare()
    began = time.monotonic()
    for slot in range(generator.slots):
        request = _request(generator, REFERENCE_FRAMES[slot % len(REFERENCE_FRAMES)])
        if time.monotonic() - began > seconds:
            break
        left = generator.start(slot, request)
        while left:
            count = min(left, prefill_chunk)
            generator.prefill(slot, count)
            left -= count
        for _ in range(FRAMES):
            generator.step(range(slot + 1))
    generator.reset()
    return time.monotonic() - started


def _request(generator: Generator, reference_frames: int) -> TalkerRequest:
    talker = generator.config.talker
    max_frames = FRAMES * generator.slots + 1
    fits = max(0, min(reference_frames, generator.max_length - max_frames - 16))
    prompt = Prompt(
        np.zeros(ROLE_LENGTH, np.int32),
        np.zeros(8, np.int32),
        np.zeros(talker.hidden_size, np.float32),
        np.zeros(8 if fits else 0, np.int32),
        np.zeros((fits, talker.num_code_groups), np.int32),
    )
    # top_p below 1 takes the longest way through the sampler.
    sampling = SamplingParameters(seed=0, top_p=0.9, subtalker_top_p=0.9)
    return TalkerRequest(prompt, sampling, max_frames)
