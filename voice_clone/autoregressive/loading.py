"""A generator by the settings of its model, in the same way for all families."""

from __future__ import annotations

import logging
from typing import Any

import torch

from voice_clone import compute
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import Talker
from voice_clone.errors import InvalidArgument
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import TalkerSettings

CPU_STREAMS, MOST_STREAMS = 8, 64
# Of the memory that is free when the talker's weights are there. The rest is for graphs and prompts, and for the other
# models, which load at the same time.
SHARE = 0.7
PREFIX_SHARE = 0.05  # likewise, for the prefixes of voices

log = logging.getLogger(__name__)


def load_generator(
    settings: TalkerSettings, talker: Talker[Any], frame_rate: float, prefix_bytes: int
) -> Generator[Any]:
    """The generator of a talker, with the memory of all its streams.

    Args:
        frame_rate: frames a second.
        prefix_bytes: the default of the setting on a CPU; 0: the talker keeps no prefixes, and the setting means
            nothing.
    """
    talker.stack.prepare(compute.wants_graphs(settings))
    free = None if talker.stack.like.device.type == "cpu" else torch.cuda.mem_get_info()[0]
    kept = prefix_bytes if free is None else int(PREFIX_SHARE * free)
    return Generator(
        talker,
        slots=_streams(settings, talker, free),
        max_length=settings.max_length,
        deterministic=settings.deterministic,
        runaway_frames=max(1, round(settings.runaway_seconds * frame_rate)),
        runner=GraphRunner.on(talker.stack.like.device) if compute.wants_graphs(settings) else None,
        prefix_bytes=(settings.prefix_bytes or kept) if prefix_bytes else 0,
        prefill_chunk=compute.prefill_chunk(settings),
    )


def streams_that_fit(free: int, stream: int) -> int:
    """How many streams a GPU generates at once by default.

    Args:
        free: bytes of memory that are free.
        stream: bytes that a stream takes.

    Raises:
        InvalidArgument: not even one fits.
    """
    fitting = int(SHARE * free) // stream
    if fitting < 1:
        raise InvalidArgument(
            f"a stream of max_length takes {stream / 1e9:.1f} GB, and {free / 1e9:.1f} GB of the GPU are free, "
            f"of which {SHARE:.0%} are for streams; set a smaller max_length, or free the GPU"
        )
    return min(fitting, MOST_STREAMS)


def stream_bytes(talker: Talker[Any], max_length: int) -> int:
    """Bytes of key-value memory of a stream of `max_length` positions."""
    config, like = talker.stack.config, talker.stack.like
    position = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * like.element_size()
    head: int = talker.head.new_memory(1, max_length, like.device).nbytes
    return position * (max_length + 1) + head


def _streams(settings: TalkerSettings, talker: Talker[Any], free: int | None) -> int:
    """`free` are the bytes of a GPU that are free; None: a CPU computes."""
    if settings.max_streams or free is None:
        return settings.max_streams or CPU_STREAMS
    stream = stream_bytes(talker, settings.max_length)
    streams = streams_that_fit(free, stream)
    log.info("max_streams is %d: a stream takes %.2f GB, %.1f GB are free", streams, stream / 1e9, free / 1e9)
    return streams
