"""The states of all open streams of a decoder that keeps one state for each stream, as most decoders do.

A stream begins with the decoder's state after its voice and reference frames. That state depends on these alone, so it
is cached (`PrimedStates`). `open_streams` keeps the states of open streams. A family whose decoder keeps something
else, or makes unequal numbers of samples, has a `DecoderStreams` of its own.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from voice_clone import compute
from voice_clone.array_kinds import cast, on_host
from voice_clone.codec.chunk import Primed, Reference
from voice_clone.codec.decoder import CodecFormat, StreamDecoder, StreamState
from voice_clone.codec.open_streams import PIECE_FRAMES, OpenStreams, SeparateStreams, try_out
from voice_clone.errors import InvalidArgument
from voice_clone.gpu import memory_bounded_by
from voice_clone.lru_cache import CacheUsage, LRUCache, within
from voice_clone.settings import DecoderSettings

if TYPE_CHECKING:  # a process whose decoder is native does without torch
    from voice_clone.codec.graphed_streams import Graphs

log = logging.getLogger(__name__)


@dataclass
class _Primed:
    state: StreamState[Any]
    used: bool  # by a stream, or restored before any stream could ask


class PrimedStates:
    """The states after reference frames.

    An entry holds the decoder's key-value caches and convolution histories after the reference (some megabytes; no
    audio, no text, no name). It is evicted when it was not used for `idle_seconds`, when newer ones need the memory, or
    when its voice is forgotten. No entry is written to disk. The key is the digest of the reference: a voice that is
    replaced has another one.

    Args: as of `LRUCache`.

    Attributes:
        cached: all of them; any thread may make it forget a voice.
    """

    def __init__(self, max_bytes: int, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.cached: LRUCache[_Primed] = LRUCache(max_bytes, idle_seconds, clock)

    def __contains__(self, reference: Reference) -> bool:
        return within(reference.key, reference.origin) in self.cached

    def get(self, reference: Reference) -> tuple[StreamState[Any], bool] | None:
        """The state after a reference, from which one stream may continue, and whether an earlier stream has used it;
        None if it is not cached.
        """
        primed = self.cached.get(reference.key, reference.origin)
        if primed is None:
            return None
        used, primed.used = primed.used, True
        return primed.state.fork(), used

    def put(self, reference: Reference, state: StreamState[Any], used: bool = True) -> None:
        """Cache the state after a reference, if it can fit; the caller may continue from `state` itself.

        `used`: false if the stream for which it was computed will still ask for it.
        """
        self.cached.put(reference.key, _Primed(state.fork(), used), state.nbytes, reference.origin)

    def room(self, size: int) -> int:
        """How many states of `size` bytes fit."""
        return self.cached.max_bytes // size


class DecoderStreams(Protocol):
    """A decoder with all its open streams, which have numbers. For one thread, but for `forget`."""

    @property
    def max_streams(self) -> int:
        """How many streams can be open."""

    @property
    def stream_bytes(self) -> int:
        """Memory of an open stream."""

    @property
    def primed_bytes(self) -> int:
        """Memory of what is cached of references."""

    @property
    def supports_ragged_batches(self) -> bool:
        """Whether the streams of a batch may move on by different numbers of frames."""

    @property
    def one_by_one(self) -> bool:
        """Whether streams take as long together as one after the other; then a batch makes its first stream wait."""

    def warm_up(self, lengths: Sequence[int], batches: Sequence[int], seconds: float) -> None:
        """Run the shapes that requests will bring, which are slow the first time; stops after about `seconds`.

        CUDA graphs are recorded first, in any case.
        """

    def prepare(self, reference: Reference) -> None:
        """Compute and cache what a stream that is about to begin with this reference will need."""

    def restore(self, references: Iterable[Reference], seconds: float) -> int:
        """`prepare` known references, the most wanted first, as many as fit and as `seconds` allow. Those of another
        checkpoint are left out. Returns their number.
        """

    def open(self, reference: Reference) -> tuple[int, Primed]:
        """A stream that goes on after a reference. Returns its number.

        Raises:
            InvalidArgument: the decoder needs the voice, and the reference has none.
        """

    def decode(self, streams: Sequence[int], frames: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        """The next frames [n, width] of different streams, n > 0 for one of them at least -> the samples of each, any
        number of them.

        If this raises, no stream has moved on.
        """

    def flush(self, stream: int) -> NDArray[np.float32]:
        """The samples that a stream still has after its last frame, any number of them."""

    def close(self, stream: int) -> None:
        """Forget a stream."""

    def forget(self, voices: Collection[str]) -> CacheUsage:
        """Drop what is cached of these voices; returns what is left. Open streams go on. Any thread may call it."""

    def sweep(self) -> None:
        """Drop what was not used for long."""


def run_until(deadline: float, steps: Iterable[Callable[[], object]]) -> None:
    """Run the steps of a warm-up until the deadline, in seconds of the monotonic clock."""
    for step in steps:
        if time.monotonic() > deadline:
            log.warning("the time for the warm-up is over; the first requests will be slower")
            return
        step()


def try_speech(decoder: DecoderStreams, streams: Sequence[int], chunks: Iterable[NDArray[Any]]) -> None:
    """Decode these chunks of each of the open streams, which then end."""
    for chunk in chunks:
        decoder.decode(streams, [chunk] * len(streams))
    for stream in streams:
        decoder.flush(stream)
        decoder.close(stream)


class StatefulStreams:
    """`DecoderStreams` of a decoder with one state a stream.

    Args:
        decoder: on any engine.
        form: of the frames that it takes.
        graphs: the steps by which it decodes, if it is a `RaggedDecoder`; None: eagerly.
        max_state_bytes: memory for the states of open streams; bounds how many can be open.
        primed_bytes, primed_seconds: bounds of the cached states after references; see `PrimedStates`.
        clock: seconds, monotonic.
    """

    one_by_one = False

    def __init__(
        self,
        decoder: StreamDecoder[Any],
        form: CodecFormat,
        *,
        graphs: Graphs | None = None,
        max_state_bytes: int = 1 << 30,
        primed_bytes: int = 256 << 20,
        primed_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._decoder = decoder
        self._form = form
        self._fresh = decoder.new_state(1)
        self.stream_bytes = self._fresh.nbytes
        self.max_streams = max(1, max_state_bytes // self.stream_bytes)
        self._states: OpenStreams = SeparateStreams(decoder, form)
        if graphs is not None and decoder.ragged is not None:
            self._states = graphs.streams(decoder.ragged, form, self.max_streams)
        self._primed = PrimedStates(primed_bytes, primed_seconds, clock)

    @property
    def primed_bytes(self) -> int:
        return self._primed.cached.nbytes

    @property
    def supports_ragged_batches(self) -> bool:
        return self._states.supports_ragged_batches

    def forget(self, voices: Collection[str]) -> CacheUsage:
        return self._primed.cached.forget(voices)

    def sweep(self) -> None:
        self._primed.cached.sweep()

    def warm_up(self, lengths: Sequence[int], batches: Sequence[int], seconds: float) -> None:
        """As of `DecoderStreams`. A decoder that runs the same code for all shapes needs the smallest alone."""
        self._states.prepare()
        deadline, zeros = time.monotonic() + seconds, self._form.payload.zeros
        longest, lengths = PIECE_FRAMES, sorted({min(length, PIECE_FRAMES) for length in lengths})
        batches = sorted({min(batch, self.max_streams) for batch in batches})
        if self._decoder.any_shape:  # what is left is short, but the first start compiles native code in it
            longest, lengths, batches, deadline = 1, lengths[:1], batches[:1], math.inf
        steps: list[Callable[[], object]] = [partial(self._prime, zeros(longest), self._fresh.fork())]
        for batch in batches:
            steps += [partial(try_out, self._states, self._fresh, batch, zeros(length)) for length in lengths]
        run_until(deadline, steps)

    def prepare(self, reference: Reference) -> None:
        if reference.empty or not reference.origin.keep or reference in self._primed:
            return
        if self._primed.room(self.stream_bytes):
            self._primed.put(reference, self._after(reference), used=False)

    def restore(self, references: Iterable[Reference], seconds: float) -> int:
        deadline = time.monotonic() + seconds
        done: list[tuple[Reference, StreamState[Any]]] = []
        room = self._primed.room(self.stream_bytes)
        for reference in references:
            if len(done) == room or time.monotonic() > deadline:
                break
            try:
                self._form.check(reference.context, "the reference", len(reference.context))
                done.append((reference, self._after(reference)))
            except InvalidArgument:  # a reference of another checkpoint
                pass
            except Exception:  # whatever a file holds, the others serve
                log.exception("the state after a known reference could not be computed")
        for reference, state in reversed(done):  # the most wanted one is then the last to be evicted
            self._primed.put(reference, state)
        return len(done)

    def open(self, reference: Reference) -> tuple[int, Primed]:
        if self._form.needs_voice and not reference.voice:
            raise InvalidArgument("this decoder needs the voice with chunk 0; send the tensor voice")
        if reference.empty:
            return self._states.open(self._fresh.fork()), "none"
        found = self._primed.get(reference)
        if found is not None:
            state, known = found
            return self._states.open(state), "hit" if known else "miss"
        state = self._after(reference)
        self._primed.put(reference, state)
        return self._states.open(state), "miss"

    def decode(self, streams: Sequence[int], frames: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        return self._states.decode(streams, frames)

    def flush(self, stream: int) -> NDArray[np.float32]:
        if not self._form.look_ahead:
            return np.zeros(0, np.float32)
        samples: NDArray[np.float32] = on_host(cast(self._decoder.flush(self._states.state(stream)), np.float32))[0]
        return samples

    def close(self, stream: int) -> None:
        self._states.close(stream)

    def _after(self, reference: Reference) -> StreamState[Any]:
        """The state of one stream after a reference."""
        state = self._fresh.fork()
        if self._form.needs_voice:
            self._decoder.condition(state, reference.voice)
        return self._prime(reference.context, state) if len(reference.context) else state

    def _prime(self, context: NDArray[Any], state: StreamState[Any]) -> StreamState[Any]:
        self._decoder.prime(self._form.batch([context], self._decoder.device), state)
        return state


def load_streams(
    settings: DecoderSettings, decoder: StreamDecoder[Any], form: CodecFormat, chunk_frames: Sequence[int]
) -> StatefulStreams:
    """The streams of a decoder with one state a stream: in CUDA graphs on a GPU, if it is a `RaggedDecoder`."""
    graphs, ragged = None, decoder.ragged
    if ragged is not None and compute.wants_graphs(settings):
        from voice_clone.codec.graphed_streams import Graphs
        from voice_clone.layers.graphs import GraphRunner

        graphs = Graphs(GraphRunner.on(ragged.device), compute.max_decode_batch(settings), chunk_frames)
    with memory_bounded_by("max_state_bytes"):
        return StatefulStreams(
            decoder,
            form,
            graphs=graphs,
            max_state_bytes=settings.max_state_bytes,
            primed_bytes=settings.primed_bytes,
            primed_seconds=settings.primed_seconds,
        )
