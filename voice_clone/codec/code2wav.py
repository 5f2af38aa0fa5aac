"""The decoders of all running streams: chunks of codec frames in, samples out."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from voice_clone.codec.primed_states import PrimedStates
from voice_clone.errors import Internal, InvalidArgument, Overloaded, VoiceCloneError
from voice_clone.families.qwen3_tts.networks.codec_decoder import DecoderState

PIECE_FRAMES = 64  # a longer chunk is decoded in pieces: the same samples, and memory that does not grow with it

Primed = Literal["hit", "miss", "none"]

log = logging.getLogger(__name__)


class StreamDecoder(Protocol):
    """What decoding streams takes; see `CodecDecoder` for each."""

    @property
    def device(self) -> torch.device: ...

    def new_state(self, batch: int) -> DecoderState: ...

    def decode_chunk(self, codes: torch.Tensor, state: DecoderState) -> torch.Tensor: ...

    def prime(self, codes: torch.Tensor, state: DecoderState) -> None: ...


@dataclass(frozen=True)
class Chunk:
    """Consecutive codec frames of one stream.

    `stream_id` names the stream; whoever knows it can feed the stream, so it must not be guessable. `index` counts a
    stream's chunks 0, 1, 2, ... without a gap. `codes` is int32 [frames, codebooks]; no frames give no samples.
    `context` is int32 [frames, codebooks], with chunk 0 alone: reference codes that precede the stream, without their
    audio. `final` says that no chunk follows. `failure`: the stream ends with it instead of samples. `arrived` is
    time.monotonic().
    """

    stream_id: str
    index: int
    codes: NDArray[np.int32]
    context: NDArray[np.int32]
    final: bool
    failure: VoiceCloneError | None = None
    arrived: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Decoded:
    """A chunk's samples, and what the stream has cost so far.

    `waveform` is float32 [frames x 1920] in [-1, 1]. `primed` says whether the state after the reference was there
    (`hit`) or computed for this stream (`miss`); `none`: the stream has no reference. `spent_ms` is the time of the
    batches that the stream was in; `first_ms` that from the arrival of its first chunk to its first samples.
    """

    waveform: NDArray[np.float32]
    primed: Primed
    spent_ms: float
    first_ms: float


@dataclass
class _Stream:
    state: DecoderState
    primed: Primed
    next_index: int = 0
    used: float = 0.0  # when its last chunk was decoded
    spent_ms: float = 0.0
    first_ms: float = 0.0


class Code2Wav:
    """Decodes streams incrementally; the samples of a stream joined equal the decode of all its frames at once.

    Args:
        decoder: the codec decoder, on whatever engine.
        codebook_size: codes lie in 0..codebook_size - 1.
        codebooks: codes a frame.
        max_state_bytes: memory for the states of open streams; bounds how many can be open.
        max_chunk_frames: frames of a chunk, and of a reference.
        idle_seconds: a stream without a chunk for so long has lost its talker.
        primed_bytes, primed_seconds: bounds of the states kept for known references; see `PrimedStates`.
        clock: seconds, monotonic.

    For one thread.
    """

    def __init__(
        self,
        decoder: StreamDecoder,
        codebook_size: int,
        codebooks: int,
        *,
        max_state_bytes: int = 1 << 30,
        max_chunk_frames: int = 512,
        idle_seconds: float = 60.0,
        primed_bytes: int = 256 << 20,
        primed_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._decoder = decoder
        self._codebook_size = codebook_size
        self._codebooks = codebooks
        self._max_chunk_frames = max_chunk_frames
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._device = decoder.device
        self._state_bytes = decoder.new_state(1).nbytes
        self.max_streams = max(1, max_state_bytes // self._state_bytes)
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
        """Memory of the states kept for known references."""
        return self._primed.nbytes

    def is_open(self, stream_id: str) -> bool:
        """Whether a stream has a state."""
        return stream_id in self._streams

    def decode(self, chunks: Sequence[Chunk]) -> list[Decoded | VoiceCloneError]:
        """The samples of one chunk each of different streams, in one batch.

        Args:
            chunks: of distinct streams and the same number of frames, without a failure.

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
                log.error(
                    "a stream with %d frames of reference could not be opened", len(chunk.context), exc_info=error
                )
                outcomes[chunk.stream_id] = Internal("the decoder failed on the reference of this stream; try again")
        waveforms = self._waveforms([chunk.codes for chunk, _ in ready], [stream for _, stream in ready])
        now = time.monotonic()
        for (chunk, stream), waveform in zip(ready, waveforms, strict=True):
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
        self._streams.pop(stream_id, None)

    def sweep(self, waiting: Collection[str] = ()) -> list[str]:
        """Forget idle streams and references; `waiting` streams are not idle. Returns the streams' ids."""
        self._primed.sweep()
        oldest = self._clock() - self._idle_seconds
        idle = [key for key, stream in self._streams.items() if stream.used < oldest and key not in waiting]
        for stream_id in idle:
            self.drop(stream_id)
        return idle

    def warm_up(self, frames: Sequence[int], batches: Sequence[int], seconds: float) -> None:
        """Run the shapes to come, so that no request pays for what a first run costs; stops after about `seconds`."""
        deadline = time.monotonic() + seconds
        lengths = sorted({min(length, PIECE_FRAMES) for length in frames})
        shapes = [(self._decoder.decode_chunk, batch, length) for batch in batches for length in lengths]
        for run, batch, length in [(self._decoder.prime, 1, PIECE_FRAMES), *shapes]:
            if time.monotonic() > deadline:
                log.warning("warm-up stopped after %.0f s; the first requests will be slower", seconds)
                return
            codes = torch.zeros(batch, self._codebooks, length, dtype=torch.int64, device=self._device)
            run(codes, self._decoder.new_state(batch))

    def prepare(self, context: NDArray[np.int32]) -> None:
        """Compute the state after a reference for a stream that is about to begin with it; changes nothing else.

        Raises:
            InvalidArgument: a code or the shape is wrong.
        """
        self._check(context, "context_codes")
        if len(context) and context not in self._primed and self._primed.room(self._state_bytes):
            self._primed.put(context, self._after(context), asked=False)

    def restore(self, references: Iterable[NDArray[np.int32]], seconds: float) -> int:
        """Compute the states after known references, the most wanted first, as many as fit and as `seconds` allow.

        Returns: how many.
        """
        deadline = time.monotonic() + seconds
        done: list[tuple[NDArray[np.int32], DecoderState]] = []
        room = self._primed.room(self._state_bytes)
        for codes in references:
            if len(done) == room or time.monotonic() > deadline:
                break
            with contextlib.suppress(InvalidArgument):  # they belong to another checkpoint
                self._check(codes, "codec_codes")
                done.append((codes, self._after(codes)))
        for codes, state in reversed(done):  # the most wanted is the last to go
            self._primed.put(codes, state)
        return len(done)

    def _stream(self, chunk: Chunk) -> _Stream:
        """The stream that a chunk belongs to, opened by its first one."""
        self._check(chunk.codes, "codes")
        self._check(chunk.context, "context_codes")
        if chunk.index != 0 and chunk.context.size:
            raise InvalidArgument("context_codes belong to chunk 0; later chunks must have none")
        stream = self._streams.get(chunk.stream_id)
        if stream is None:
            if chunk.index != 0:
                raise InvalidArgument(
                    f"chunk {chunk.index} belongs to a stream that is not open; a stream begins with chunk 0"
                )
            stream = self._streams[chunk.stream_id] = self._open(chunk.context)
        elif chunk.index != stream.next_index:
            raise InvalidArgument(f"chunk {chunk.index} of this stream came where chunk {stream.next_index} was due")
        return stream

    def _open(self, context: NDArray[np.int32]) -> _Stream:
        if len(self._streams) >= self.max_streams:
            raise Overloaded(f"{self.max_streams} streams are open already; try again later")
        if context.size == 0:
            return _Stream(self._decoder.new_state(1), "none", used=self._clock())
        found = self._primed.get(context)
        if found is not None:
            state, known = found
            return _Stream(state, "hit" if known else "miss", used=self._clock())
        state = self._after(context)
        self._primed.put(context, state)
        return _Stream(state, "miss", used=self._clock())

    def _after(self, context: NDArray[np.int32]) -> DecoderState:
        """The decoder's state after reference codes."""
        state = self._decoder.new_state(1)
        self._decoder.prime(self._batch([context]), state)
        return state

    def _waveforms(
        self, codes: Sequence[NDArray[np.int32]], streams: Sequence[_Stream]
    ) -> list[NDArray[np.float32] | VoiceCloneError]:
        """Decode one batch and move its streams on; where the batch fails, its streams one by one."""
        if not streams or codes[0].size == 0:
            return [np.zeros(0, np.float32) for _ in streams]
        alone = len(streams) == 1
        try:
            state = streams[0].state if alone else DecoderState.stack([stream.state for stream in streams])
            pieces = torch.split(self._batch(codes), PIECE_FRAMES, dim=-1)
            decoded = torch.cat([self._decoder.decode_chunk(piece, state) for piece in pieces], dim=-1)
            waveforms: NDArray[np.float32] = decoded.float().cpu().numpy()
            states = [state] if alone else state.split()
        except Exception as error:
            if not alone:
                return [self._waveforms([one], [stream])[0] for one, stream in zip(codes, streams, strict=True)]
            log.error("decoding %d frames failed", len(codes[0]), exc_info=error)
            return [Internal("the decoder failed on this stream; try again")]
        for stream, moved in zip(streams, states, strict=True):
            stream.state = moved
        bad = Internal("the decoder made no valid audio for this stream")
        return [waveform if np.isfinite(waveform).all() else bad for waveform in waveforms]

    def _batch(self, codes: Sequence[NDArray[np.int32]]) -> torch.Tensor:
        """B times [frames, codebooks] -> int64 [B, codebooks, frames] on the decoder's device."""
        return torch.from_numpy(np.stack(codes).transpose(0, 2, 1).astype(np.int64)).to(self._device)

    def _check(self, codes: NDArray[np.int32], name: str) -> None:
        if codes.ndim != 2 or (len(codes) and codes.shape[1] != self._codebooks):
            raise InvalidArgument(f"{name} must have shape [frames, {self._codebooks}]")
        if len(codes) > self._max_chunk_frames:
            raise InvalidArgument(f"{name} has {len(codes)} frames; at most {self._max_chunk_frames} are taken at once")
        if codes.size and (codes.min() < 0 or codes.max() >= self._codebook_size):
            raise InvalidArgument(f"{name} must lie in 0..{self._codebook_size - 1}")
