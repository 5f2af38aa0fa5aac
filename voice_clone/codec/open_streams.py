"""Where the states of open streams are, and how a batch of streams moves on: each stream has a state of its own.

graphed_streams.py has the other way, for CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from voice_clone.array_kinds import cast, on_host
from voice_clone.codec.decoder import CodecFormat, StreamDecoder, StreamState

PIECE_FRAMES = 64  # a longer chunk is decoded in pieces: the same samples, and memory that does not grow with it


class OpenStreams(Protocol):
    """The states of all open streams, which have numbers. For one thread."""

    @property
    def supports_ragged_batches(self) -> bool:
        """Whether the streams of a batch may move on by different numbers of frames."""

    def prepare(self) -> None:
        """Do what must be done before there are streams, and takes long."""

    def open(self, state: StreamState[Any]) -> int:
        """A stream that goes on from the state of one stream. Returns its number."""

    def decode(self, streams: Sequence[int], frames: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        """The next frames [n, width] of different streams, n > 0 for one of them at least -> the samples of each.

        If this raises, no stream has moved on.
        """

    def state(self, stream: int) -> StreamState[Any]:
        """Where a stream is."""

    def close(self, stream: int) -> None:
        """Forget a stream."""


def try_out(streams: OpenStreams, state: StreamState[Any], count: int, frames: NDArray[Any]) -> None:
    """Decode `frames` of `count` streams that begin at `state`, and forget them: the first time is slow."""
    numbers: list[int] = []
    try:
        for _ in range(count):
            numbers.append(streams.open(state.fork()))
        streams.decode(numbers, [frames] * count)
    finally:
        for number in numbers:
            streams.close(number)


class SeparateStreams:
    """`OpenStreams`, each with a state of its own. Any decoder serves."""

    supports_ragged_batches = False

    def __init__(self, decoder: StreamDecoder[Any], form: CodecFormat) -> None:
        self._decoder = decoder
        self._form = form
        self._states: dict[int, StreamState[Any]] = {}
        self._numbers = count()

    def prepare(self) -> None:
        """Nothing."""

    def open(self, state: StreamState[Any]) -> int:
        number = next(self._numbers)
        self._states[number] = state
        return number

    def decode(self, streams: Sequence[int], frames: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        states = [self._states[stream] for stream in streams]
        alone = len(states) == 1
        state = states[0].fork() if alone else StreamState.stack(states)
        batch = self._form.batch(frames, self._decoder.device)
        pieces = (batch[..., begin : begin + PIECE_FRAMES] for begin in range(0, batch.shape[-1], PIECE_FRAMES))
        made = (cast(self._decoder.decode_chunk(piece, state), np.float32) for piece in pieces)
        decoded = np.concatenate([on_host(each) for each in made], axis=-1)
        self._states.update(zip(streams, [state] if alone else state.split(), strict=True))
        return list(decoded)

    def state(self, stream: int) -> StreamState[Any]:
        return self._states[stream]

    def close(self, stream: int) -> None:
        del self._states[stream]
