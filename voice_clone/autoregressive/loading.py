"""A generator as the settings of its model ask for it: alike for all families."""

from __future__ import annotations

from typing import Any

from voice_clone import compute
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.autoregressive.talker import Talker
from voice_clone.layers.graphs import GraphRunner
from voice_clone.native.thread_pool import leave_threads_to_native_code
from voice_clone.settings import Settings

# A cycle of a few frames, repeated exactly for so long after the text was read. Pauses, held vowels and laughter are
# shorter, and live sounds vary from frame to frame. The shortest budgets, about 15 s, are far longer.
RUNAWAY_SECONDS = 6.0


def load_generator(settings: Settings, talker: Talker[Any], frame_rate: float, prefix_bytes: int) -> Generator[Any]:
    """The generator of a talker, with the memory of all its streams.

    Args:
        settings: max_streams, max_length, deterministic, runaway_seconds, prefix_bytes.
        frame_rate: frames a second.
        prefix_bytes: the default of the setting; 0: the talker keeps no prefixes, and the setting means nothing.
    """
    if isinstance(talker.stack, NativeStack):
        leave_threads_to_native_code()
    return Generator(
        talker,
        slots=settings.integer("max_streams", 8),
        max_length=settings.integer("max_length", 4096),
        deterministic=settings.choice("deterministic", ("false", "true")) == "true",
        runaway_frames=max(1, round(settings.number("runaway_seconds", RUNAWAY_SECONDS) * frame_rate)),
        runner=GraphRunner.on(talker.stack.like.device) if compute.wants_graphs(settings) else None,
        prefix_bytes=settings.integer("prefix_bytes", prefix_bytes) if prefix_bytes else 0,
    )
