"""Makes a stream of speech faster or slower at the same pitch."""

from __future__ import annotations

import math
from typing import cast

import av
import numpy as np
from av.filter import Graph
from numpy.typing import NDArray
from voice_clone_client.errors import InvalidArgument

from . import MAX_SPEED, MIN_SPEED

_PIECES = 100  # pieces a second; the filter returns output only after a whole piece


class Tempo:
    """Time stretching by waveform-similarity overlap-add: the filter `atempo` of FFmpeg.

    `n` input samples give exactly round(n / speed) output samples: the filter drops the last tens of milliseconds, so
    silence is added at the end and the excess is cut. The filter gets pieces of one size, so the output does not depend
    on the division into chunks. The latency is 50 ms of input; at speeds below 0.5 and above 2
    it is up to 200 ms.

    Args:
        rate: Hz.
        speed: 0.25 to 4.

    Raises:
        InvalidArgument: the speed is out of range.
    """

    def __init__(self, rate: int, speed: float) -> None:
        if not MIN_SPEED <= speed <= MAX_SPEED:  # NaN too
            raise InvalidArgument(f"`speed` must be from {MIN_SPEED} to {MAX_SPEED:g}, not {speed}")
        self._speed = speed
        self._rate = rate
        self._piece = math.ceil(rate / _PIECES)
        self._held = np.zeros(0, np.float32)  # less than a piece
        self._pushed = 0
        self._pulled = 0
        self._graph = Graph()
        self._graph.threads = 1
        chain = [self._graph.add_abuffer(format="fltp", sample_rate=rate, layout="mono")]
        # one filter takes 0.5 and more, but beyond 2 it drops samples instead of blending them
        factors = [speed] if 0.5 <= speed <= 2.0 else [math.sqrt(speed)] * 2
        chain += [self._graph.add("atempo", repr(factor)) for factor in factors]
        chain.append(self._graph.add("abuffersink"))
        self._graph.link_nodes(*chain).configure()
        self._source, self._sink = chain[0], chain[-1]

    def push(self, samples: NDArray[np.float32], final: bool) -> NDArray[np.float32]:
        """Return the output after these samples.

        Args:
            samples: float32 [n].
            final: no samples follow; the output is complete.
        """
        held = np.concatenate([self._held, samples])
        whole = len(held) // self._piece * self._piece
        self._held = held[whole:]
        out = [self._filter(piece) for piece in held[:whole].reshape(-1, self._piece)]
        if final:
            target = round((self._pushed + len(self._held)) / self._speed)
            out.append(self._filter(np.pad(self._held, (0, self._piece - len(self._held)))))
            while self._pulled < target:
                out.append(self._filter(np.zeros(self._piece, np.float32)))
            if self._pulled > target:
                return np.concatenate(out)[: target - self._pulled]
        return np.concatenate([*out, np.zeros(0, np.float32)])

    def _filter(self, piece: NDArray[np.float32]) -> NDArray[np.float32]:
        frame = av.AudioFrame.from_ndarray(piece[None], format="fltp", layout="mono")
        frame.sample_rate = self._rate
        self._source.push(frame)
        self._pushed += len(piece)
        out = [np.zeros(0, np.float32)]
        while True:
            try:
                pulled = cast(av.AudioFrame, self._sink.pull())
            except av.BlockingIOError:
                break
            out.append(pulled.to_ndarray()[0])
        samples: NDArray[np.float32] = np.concatenate(out)
        self._pulled += len(samples)
        return samples
