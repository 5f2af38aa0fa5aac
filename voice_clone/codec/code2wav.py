"""The decoders of all running streams: chunks of frames in, samples out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone import compute
from voice_clone.codec.chunk import CodecChunk, Decoded, Primed, Reference
from voice_clone.codec.decoder import CodecFormat
from voice_clone.codec.decoder_streams import DecoderStreams
from voice_clone.codec.marks import Marks, OpenMark, Outcome, load_marks, refuse_without_marks
from voice_clone.errors import Internal, InvalidArgument, Overloaded, VoiceCloneError
from voice_clone.gpu import log_failure
from voice_clone.lru_cache import CacheUsage
from voice_clone.settings import DecoderSettings

log = logging.getLogger(__name__)


@dataclass
class _OpenStream:
    number: int  # among the `DecoderStreams`
    primed: Primed
    next_index: int = 0
    used: float = 0.0  # when its last chunk was decoded
    spent_ms: float = 0.0
    began: float = 0.0  # when its first chunk arrived, on `time.monotonic`
    first_ms: float | None = None
    mark: OpenMark | None = None


class Code2Wav:
    """Decodes streams incrementally; the samples of a stream joined equal the decode of all its frames at once.

    Args:
        decoding: the family's decoder with the states of its streams.
        form: of the frames that it takes.
        marks: mark what it decoded; None: nothing is marked.
        max_chunk_frames: frames of a chunk, and of a reference.
        max_batch: chunks that are to be decoded together.
        idle_seconds: a stream without a chunk for so long has lost its talker.
        clock: seconds, monotonic.

    Attributes:
        sample_rate: Hz.

    For one thread, but for `forget`.
    """

    def __init__(
        self,
        decoding: DecoderStreams,
        form: CodecFormat,
        *,
        marks: Marks | None = None,
        max_chunk_frames: int = 512,
        max_batch: int = 4,
        idle_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._decoding = decoding
        self._form = form
        self._marks = marks
        self.max_batch = max_batch
        self.sample_rate = form.sample_rate
        self._max_chunk_frames = max_chunk_frames
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._streams: dict[str, _OpenStream] = {}

    @property
    def max_streams(self) -> int:
        return self._decoding.max_streams

    @property
    def streams(self) -> int:
        return len(self._streams)

    @property
    def stream_bytes(self) -> int:
        return len(self._streams) * self._decoding.stream_bytes

    @property
    def primed_bytes(self) -> int:
        return self._decoding.primed_bytes

    def forget(self, voices: Collection[str]) -> CacheUsage:
        return self._decoding.forget(voices)

    @property
    def supports_ragged_batches(self) -> bool:
        return self._decoding.supports_ragged_batches

    def is_open(self, stream_id: str) -> bool:
        return stream_id in self._streams

    def decode(self, chunks: Sequence[CodecChunk]) -> list[Decoded | VoiceCloneError]:
        """The samples of one chunk each of different streams, in one batch.

        Args:
            chunks: of distinct streams, without a failure; of the same number of frames, unless
                `supports_ragged_batches`.

        Returns: for each chunk its samples or its error; no chunk's error touches another stream.
            InvalidArgument: a code, a shape or the index is wrong. It opens no stream and leaves an open one as it is.
            Overloaded: too many streams are open to open one more.
            Unsupported: it is to be marked, and this server marks nothing.
            Internal: the decoder failed, or a mark that is required; the stream is dropped.
        """
        began = time.monotonic()
        outcomes: dict[str, Decoded | VoiceCloneError] = {}
        ready: list[tuple[CodecChunk, _OpenStream]] = []
        for chunk in chunks:
            try:
                ready.append((chunk, self._stream(chunk)))
            except VoiceCloneError as error:
                outcomes[chunk.stream_id] = error
            except Exception as error:
                log_failure(log, error, "the decoder failed on a reference of %d frames", len(chunk.context))
                outcomes[chunk.stream_id] = Internal("the decoder failed on the reference of this stream; try again")
        waveforms = self._waveforms([chunk.payload for chunk, _ in ready], [stream for _, stream in ready])
        waveforms = [
            self._flushed(stream, waveform) if chunk.final else waveform
            for (chunk, stream), waveform in zip(ready, waveforms, strict=True)
        ]
        if self._marks is not None:
            waveforms = self._marks.apply([stream.mark for _, stream in ready], waveforms)
        now = time.monotonic()
        for (chunk, stream), waveform in zip(ready, waveforms, strict=True):
            if isinstance(waveform, VoiceCloneError):
                outcomes[chunk.stream_id] = waveform
                self.drop(chunk.stream_id)
                continue
            stream.spent_ms += 1e3 * (now - began)
            if stream.first_ms is None and len(waveform):
                stream.first_ms = 1e3 * (now - stream.began)
            mark = stream.mark.result if stream.mark is not None else "off"
            first_ms = stream.first_ms or 0.0
            outcomes[chunk.stream_id] = Decoded(waveform, stream.primed, stream.spent_ms, first_ms, mark)
            stream.next_index += 1
            stream.used = self._clock()
            if chunk.final:
                self.drop(chunk.stream_id)
        return [outcomes[chunk.stream_id] for chunk in chunks]

    def drop(self, stream_id: str) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._decoding.close(stream.number)

    def sweep(self, waiting: Collection[str] = ()) -> list[str]:
        """Forget idle streams and references; `waiting` streams are not idle. Returns the streams' ids."""
        self._decoding.sweep()
        oldest = self._clock() - self._idle_seconds
        idle = [key for key, stream in self._streams.items() if stream.used < oldest and key not in waiting]
        for stream_id in idle:
            self.drop(stream_id)
        return idle

    def warm_up(self, lengths: Sequence[int], batches: Sequence[int], seconds: float) -> None:
        self._decoding.warm_up(lengths, batches, seconds)
        if self._marks is not None:
            self._marks.warm_up([length * self._form.frame_samples for length in lengths], batches)

    def prepare(self, reference: Reference) -> None:
        """Compute and cache what a stream that is about to begin with a reference will need.

        Raises:
            InvalidArgument: a code or the shape is wrong.
        """
        self._check(reference.context, "context_codes")
        self._decoding.prepare(reference)

    def restore(self, references: Iterable[Reference], seconds: float) -> int:
        """As of `DecoderStreams`; references longer than `max_chunk_frames` are left out."""
        short = (each for each in references if len(each.context) <= self._max_chunk_frames)
        return self._decoding.restore(short, seconds)

    def _stream(self, chunk: CodecChunk) -> _OpenStream:
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
            if len(self._streams) >= self.max_streams:
                raise Overloaded(f"{self.max_streams} streams are open already; try again later")
            if self._marks is None:
                refuse_without_marks(chunk.mark)
            opened = self._decoding.open(chunk.reference)
            stream = self._streams[chunk.stream_id] = _OpenStream(*opened, used=self._clock(), began=chunk.arrived)
            if self._marks is not None:
                stream.mark = self._marks.open(chunk.mark)
        elif chunk.index != stream.next_index:
            raise InvalidArgument(f"chunk {chunk.index} of this stream came where chunk {stream.next_index} was due")
        return stream

    def _flushed(self, stream: _OpenStream, waveform: Outcome) -> Outcome:
        """A last chunk's samples and those that the decoder still has."""
        if isinstance(waveform, VoiceCloneError):
            return waveform
        try:
            rest = self._decoding.flush(stream.number)
        except Exception as error:
            log_failure(log, error, "the end of a stream could not be decoded")
            return Internal("the decoder failed on the end of this stream; try again")
        if not len(rest):
            return waveform
        return np.concatenate([waveform, rest]) if np.isfinite(rest).all() else _bad()

    def _waveforms(self, frames: Sequence[NDArray[Any]], streams: Sequence[_OpenStream]) -> list[Outcome]:
        """Decode one batch and move its streams on; if the batch fails, decode its streams one by one."""
        if not any(each.size for each in frames):
            return [np.zeros(0, np.float32) for _ in streams]
        try:
            waveforms = self._decoding.decode([stream.number for stream in streams], frames)
        except Exception as error:
            if len(streams) > 1:
                return [self._waveforms([one], [stream])[0] for one, stream in zip(frames, streams, strict=True)]
            log_failure(log, error, "decoding %d frames failed", len(frames[0]))
            return [Internal("the decoder failed on this stream; try again")]
        return [waveform if np.isfinite(waveform).all() else _bad() for waveform in waveforms]

    def _check(self, frames: NDArray[Any], name: str) -> None:
        self._form.check(frames, name, self._max_chunk_frames)


def _bad() -> Internal:
    return Internal("the decoder made no valid audio for this stream")


def load_code2wav(settings: DecoderSettings, decoding: DecoderStreams, form: CodecFormat) -> Code2Wav:
    """The decoders of all streams."""
    max_batch = 1 if decoding.one_by_one and not settings.max_decode_batch else compute.max_decode_batch(settings)
    code2wav = Code2Wav(
        decoding,
        form,
        marks=load_marks(settings, form.sample_rate),
        max_chunk_frames=settings.max_chunk_frames,
        max_batch=max_batch,
        idle_seconds=settings.stream_idle_seconds,
    )
    log.info("at most %d streams, decoded %d at a time", code2wav.max_streams, max_batch)
    return code2wav
