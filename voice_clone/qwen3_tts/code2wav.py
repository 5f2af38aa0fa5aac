"""The decoders of all running streams: chunks of codec frames in, samples out."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voice_clone.errors import Internal, InvalidArgument, Overloaded
from voice_clone.qwen3_tts.codec_decoder import CodecDecoder, DecoderState

IDLE_SECONDS = 120.0  # a stream without a chunk for so long has lost its talker


@dataclass
class _Stream:
    state: DecoderState
    next_index: int
    used: float  # time.monotonic() of its last chunk


class Code2Wav:
    """Decodes streams incrementally; the samples of a stream joined equal the decode of all its frames at once.

    Args:
        decoder: the codec decoder.
        codebook_size: codes lie in 0..codebook_size - 1.
        codebooks: codes a frame.
        max_streams: streams whose state is kept at once.

    For one thread.
    """

    def __init__(self, decoder: CodecDecoder, codebook_size: int, codebooks: int, max_streams: int = 1024) -> None:
        self._decoder = decoder
        self._codebook_size = codebook_size
        self._codebooks = codebooks
        self._max_streams = max_streams
        self._streams: dict[str, _Stream] = {}

    @property
    def streams(self) -> int:
        """How many streams have a state."""
        return len(self._streams)

    def decode(
        self, stream_id: str, index: int, codes: NDArray[np.int32], context: NDArray[np.int32], final: bool
    ) -> NDArray[np.float32]:
        """The samples of a stream's next chunk.

        Args:
            stream_id: names the stream.
            index: 0, 1, 2, ... without a gap.
            codes: int32 [frames, codebooks]; no frames gives no samples.
            context: int32 [frames, codebooks], with chunk 0: codes that precede the stream, without their audio.
            final: whether this is the last chunk; the stream's state is dropped.

        Returns: float32 [frames x 1920] in [-1, 1].
        Raises:
            InvalidArgument: a code, a shape or the index is wrong; the stream is dropped.
            Overloaded: too many streams have a state.
        """
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            stream = self._open(index, context)
        if stream.next_index != index:
            raise InvalidArgument(f"chunk {index} of this stream came where chunk {stream.next_index} was due")
        waveform = self._run(codes, stream.state)
        if not np.isfinite(waveform).all():
            raise Internal("the decoder made no valid audio for this stream")
        if not final:
            stream.next_index += 1
            stream.used = time.monotonic()
            self._streams[stream_id] = stream
        return waveform

    def drop(self, stream_id: str) -> None:
        """Forget a stream."""
        self._streams.pop(stream_id, None)

    def _open(self, index: int, context: NDArray[np.int32]) -> _Stream:
        if index != 0:
            raise InvalidArgument(f"chunk {index} belongs to a stream that is not open; a stream begins with chunk 0")
        self._sweep()
        if len(self._streams) >= self._max_streams:
            raise Overloaded(f"{self._max_streams} streams are open already; try again later")
        state = self._decoder.new_state(1)
        if (past := self._batch(context)) is not None:
            self._decoder.prime(past, state)
        return _Stream(state, 0, time.monotonic())

    def _sweep(self) -> None:
        oldest = time.monotonic() - IDLE_SECONDS
        for stream_id in [key for key, stream in self._streams.items() if stream.used < oldest]:
            del self._streams[stream_id]

    def _run(self, codes: NDArray[np.int32], state: DecoderState) -> NDArray[np.float32]:
        batch = self._batch(codes)
        if batch is None:
            return np.zeros(0, np.float32)
        waveform: NDArray[np.float32] = self._decoder.decode_chunk(batch, state)[0].float().cpu().numpy()
        return waveform

    def _batch(self, codes: NDArray[np.int32]) -> Tensor | None:
        """Checked codes as int64 [1, codebooks, frames]; None if there are no frames."""
        if codes.ndim != 2 or (codes.size and codes.shape[1] != self._codebooks):
            raise InvalidArgument(f"codes must have shape [frames, {self._codebooks}]")
        if codes.size == 0:
            return None
        if codes.min() < 0 or codes.max() >= self._codebook_size:
            raise InvalidArgument(f"codes must lie in 0..{self._codebook_size - 1}")
        device = self._decoder.pre_conv.conv.weight.device
        return torch.from_numpy(codes.T[None].astype(np.int64)).to(device)
