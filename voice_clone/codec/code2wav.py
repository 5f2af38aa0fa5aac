"""The decoders of all running streams: chunks of frames in, samples out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from voice_clone.codec.chunk import Chunk, Decoded, Primed
from voice_clone.codec.decoder import CodecFormat, LookAheadDecoder, PaddedDecoder, StreamDecoder, VoiceDecoder
from voice_clone.codec.graphed_streams import GraphedStreams, Graphs
from voice_clone.codec.native_decoder import NativeWindowedDecoder
from voice_clone.codec.open_streams import PIECE_FRAMES, OpenStreams, SeparateStreams, try_out
from voice_clone.codec.primed_states import PrimedStates
from voice_clone.errors import Internal, InvalidArgument, Overloaded, VoiceCloneError
from voice_clone.layers.streaming import StreamState
from voice_clone.lost_gpu import log_failure
from voice_clone.lru_cache import Kept, Origin

log = logging.getLogger(__name__)


@dataclass
class _Stream:
    number: int  # among the `OpenStreams`
    primed: Primed
    next_index: int = 0
    used: float = 0.0  # when its last chunk was decoded
    spent_ms: float = 0.0
    first_ms: float = 0.0


class Code2Wav:
    """Decodes streams incrementally; the samples of a stream joined equal the decode of all its frames at once.

    Args:
        decoder: the family's decoder, on any engine.
        form: of the frames that it takes.
        graphs: the steps by which it decodes, if it is a `PaddedDecoder`; None: eagerly.
        max_state_bytes: memory for the states of open streams; bounds how many can be open.
        max_chunk_frames: frames of a chunk, and of a reference.
        idle_seconds: a stream without a chunk for so long has lost its talker.
        primed_bytes, primed_seconds: bounds of the cached states after references; see `PrimedStates`.
        clock: seconds, monotonic.

    For one thread, but for `forget`.
    """

    def __init__(
        self,
        decoder: StreamDecoder,
        form: CodecFormat,
        *,
        graphs: Graphs | None = None,
        max_state_bytes: int = 1 << 30,
        max_chunk_frames: int = 512,
        idle_seconds: float = 60.0,
        primed_bytes: int = 256 << 20,
        primed_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._decoder = decoder
        self._form = form
        self._max_chunk_frames = max_chunk_frames
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._fresh = decoder.new_state(1)
        self._state_bytes = self._fresh.nbytes
        self.max_streams = max(1, max_state_bytes // self._state_bytes)
        self._states: OpenStreams = SeparateStreams(decoder, form)
        if graphs is not None:
            self._states = GraphedStreams(cast(PaddedDecoder, decoder), form, graphs, self.max_streams)
        self._streams: dict[str, _Stream] = {}
        self._primed = PrimedStates(primed_bytes, primed_seconds, clock)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    @property
    def stream_bytes(self) -> int:
        """Memory of their states."""
        return len(self._streams) * self._state_bytes

    @property
    def primed_bytes(self) -> int:
        """Memory of the cached states after references."""
        return self._primed.nbytes

    def forget(self, voices: Collection[str]) -> Kept:
        """Drop the cached states after references of these voices; returns what is left. Open streams go on. Any thread
        may call it.
        """
        return self._primed.cached.forget(voices)

    @property
    def takes_unequal(self) -> bool:
        """Whether the chunks of a batch may differ in their frames."""
        return self._states.unequal

    def is_open(self, stream_id: str) -> bool:
        """Whether a stream has a state."""
        return stream_id in self._streams

    def decode(self, chunks: Sequence[Chunk]) -> list[Decoded | VoiceCloneError]:
        """The samples of one chunk each of different streams, in one batch.

        Args:
            chunks: of distinct streams, without a failure, and of the same number of frames unless `takes_unequal`.

        Returns: for each chunk its samples or its error; no chunk's error touches another stream.
            InvalidArgument: a code, a shape or the index is wrong. It opens no stream and leaves an open one as it is.
            Overloaded: too many streams are open to open one more.
            Internal: the decoder failed; the stream is dropped.
        """
        began = time.monotonic()
        outcomes: dict[str, Decoded | VoiceCloneError] = {}
        ready: list[tuple[Chunk, _Stream]] = []
        for chunk in chunks:
            try:
                ready.append((chunk, self._stream(chunk)))
            except VoiceCloneError as error:
                outcomes[chunk.stream_id] = error
            except Exception as error:
                log_failure(log, error, "the decoder failed on a reference of %d frames", len(chunk.context))
                outcomes[chunk.stream_id] = Internal("the decoder failed on the reference of this stream; try again")
        waveforms = self._waveforms([chunk.payload for chunk, _ in ready], [stream for _, stream in ready])
        now = time.monotonic()
        for (chunk, stream), waveform in zip(ready, waveforms, strict=True):
            if chunk.final and self._form.look_ahead and not isinstance(waveform, VoiceCloneError):
                waveform = self._flushed(stream, waveform)
            if isinstance(waveform, VoiceCloneError):
                outcomes[chunk.stream_id] = waveform
                self.drop(chunk.stream_id)
                continue
            stream.spent_ms += 1e3 * (now - began)
            if chunk.index == 0:
                stream.first_ms = 1e3 * (now - chunk.arrived)
            outcomes[chunk.stream_id] = Decoded(waveform, stream.primed, stream.spent_ms, stream.first_ms)
            stream.next_index += 1
            stream.used = self._clock()
            if chunk.final:
                self.drop(chunk.stream_id)
        return [outcomes[chunk.stream_id] for chunk in chunks]

    def drop(self, stream_id: str) -> None:
        """Forget a stream."""
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._states.close(stream.number)

    def sweep(self, waiting: Collection[str] = ()) -> list[str]:
        """Forget idle streams and references; `waiting` streams are not idle. Returns the streams' ids."""
        self._primed.sweep()
        oldest = self._clock() - self._idle_seconds
        idle = [key for key, stream in self._streams.items() if stream.used < oldest and key not in waiting]
        for stream_id in idle:
            self.drop(stream_id)
        return idle

    def warm_up(self, lengths: Sequence[int], batches: Sequence[int], seconds: float) -> None:
        """Run the shapes that requests will bring, which are slow the first time; stops after about `seconds`.

        CUDA graphs are recorded first, in any case. Native code is the same for all shapes: there the smallest does.
        """
        self._states.prepare()
        deadline, zeros = time.monotonic() + seconds, self._form.payload.zeros
        longest, lengths = PIECE_FRAMES, sorted({min(length, PIECE_FRAMES) for length in lengths})
        batches = sorted({min(batch, self.max_streams) for batch in batches})
        if isinstance(self._decoder, NativeWindowedDecoder):
            longest, lengths, batches = 1, lengths[:1], batches[:1]
        steps: list[Callable[[], object]] = [partial(self._after, zeros(longest))]
        for batch in batches:
            steps += [partial(try_out, self._states, self._fresh, batch, zeros(length)) for length in lengths]
        for step in steps:
            if time.monotonic() > deadline:
                log.warning("warm-up stopped after %.0f s; the first requests will be slower", seconds)
                return
            step()

    def prepare(self, context: NDArray[Any], origin: Origin) -> None:
        """Compute and cache the state after a reference with which a stream is about to begin.

        Raises:
            InvalidArgument: a code or the shape is wrong.
        """
        self._check(context, "context_codes")
        if self._form.needs_voice or not origin.keep:
            return
        if len(context) and context not in self._primed and self._primed.room(self._state_bytes):
            self._primed.put(context, self._after(context), origin, used=False)

    def restore(self, references: Iterable[tuple[Origin, NDArray[Any]]], seconds: float) -> int:
        """Compute the states after known references, the most wanted first, as many as fit and as `seconds` allow.
        Returns their number.
        """
        deadline = time.monotonic() + seconds
        done: list[tuple[Origin, NDArray[Any], StreamState]] = []
        room = 0 if self._form.needs_voice else self._primed.room(self._state_bytes)
        for origin, frames in references:
            if len(done) == room or time.monotonic() > deadline:
                break
            try:
                self._check(frames, "the reference")
                done.append((origin, frames, self._after(frames)))
            except InvalidArgument:  # a reference of another checkpoint
                pass
            except Exception:  # whatever a file holds, the others serve
                log.exception("the state after a known reference could not be computed")
        for origin, frames, state in reversed(done):  # the most wanted one is then the last to be evicted
            self._primed.put(frames, state, origin)
        return len(done)

    def _stream(self, chunk: Chunk) -> _Stream:
        """The stream that a chunk belongs to, opened by its first one."""
        self._check(chunk.payload, "codes")
        self._check(chunk.context, "context_codes")
        if chunk.index != 0 and (chunk.context.size or chunk.voice):
            raise InvalidArgument("context_codes and voice belong to chunk 0; later chunks must have none")
        stream = self._streams.get(chunk.stream_id)
        if stream is None:
            if chunk.index != 0:
                raise InvalidArgument(
                    f"chunk {chunk.index} belongs to a stream that is not open; a stream begins with chunk 0"
                )
            stream = self._streams[chunk.stream_id] = self._open(chunk.context, chunk.voice, chunk.origin)
        elif chunk.index != stream.next_index:
            raise InvalidArgument(f"chunk {chunk.index} of this stream came where chunk {stream.next_index} was due")
        return stream

    def _open(self, context: NDArray[Any], voice: Mapping[str, NDArray[Any]], origin: Origin) -> _Stream:
        if len(self._streams) >= self.max_streams:
            raise Overloaded(f"{self.max_streams} streams are open already; try again later")
        if self._form.needs_voice:
            return self._open_with_voice(context, voice)
        if context.size == 0:
            return self._begun(self._fresh.fork(), "none")
        found = self._primed.get(context, origin)
        if found is not None:
            state, known = found
            return self._begun(state, "hit" if known else "miss")
        state = self._after(context)
        self._primed.put(context, state, origin)
        return self._begun(state, "miss")

    def _begun(self, state: StreamState, primed: Primed) -> _Stream:
        return _Stream(self._states.open(state), primed, used=self._clock())

    def _open_with_voice(self, context: NDArray[Any], voice: Mapping[str, NDArray[Any]]) -> _Stream:
        """A stream whose state depends on more than the reference frames; its state is not cached."""
        if not voice:
            raise InvalidArgument("this decoder needs the voice with chunk 0; send the tensor voice")
        state = self._fresh.fork()
        cast(VoiceDecoder, self._decoder).condition(state, voice)
        return self._begun(self._after(context, state) if len(context) else state, "none")

    def _flushed(self, stream: _Stream, waveform: NDArray[np.float32]) -> NDArray[np.float32] | VoiceCloneError:
        """A last chunk's samples and those that a decoder which looks ahead still has."""
        try:
            state = self._states.state(stream.number)
            rest = cast(LookAheadDecoder, self._decoder).flush(state)[0].float().cpu().numpy()
            whole: NDArray[np.float32] = np.concatenate([waveform, rest])
        except Exception as error:
            log_failure(log, error, "the end of a stream could not be decoded")
            return Internal("the decoder failed on the end of this stream; try again")
        return whole

    def _after(self, context: NDArray[Any], state: StreamState | None = None) -> StreamState:
        """The decoder's state after reference frames, from `state` on; None: of a fresh stream."""
        state = state or self._fresh.fork()
        self._decoder.prime(self._form.batch([context], self._decoder.device), state)
        return state

    def _waveforms(
        self, frames: Sequence[NDArray[Any]], streams: Sequence[_Stream]
    ) -> list[NDArray[np.float32] | VoiceCloneError]:
        """Decode one batch and move its streams on; if the batch fails, decode its streams one by one."""
        if not any(each.size for each in frames):
            return [np.zeros(0, np.float32) for _ in streams]
        try:
            waveforms = self._states.decode([stream.number for stream in streams], frames)
        except Exception as error:
            if len(streams) > 1:
                return [self._waveforms([one], [stream])[0] for one, stream in zip(frames, streams, strict=True)]
            log_failure(log, error, "decoding %d frames failed", len(frames[0]))
            return [Internal("the decoder failed on this stream; try again")]
        bad = Internal("the decoder made no valid audio for this stream")
        return [waveform if np.isfinite(waveform).all() else bad for waveform in waveforms]

    def _check(self, frames: NDArray[Any], name: str) -> None:
        self._form.check(frames, name, self._max_chunk_frames)
