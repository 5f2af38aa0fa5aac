"""The way from the talker's engine to code2wav: chunks as tensors, heartbeats between them, errors at the end."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from voice_clone.batching.stream import FrameChunk
from voice_clone.errors import Internal, VoiceCloneError
from voice_clone.triton.stages.streams import LastChunks
from voice_clone.triton.stages.talker_call import TalkerStream
from voice_clone.triton.stages.text_streams import TextStreams

if TYPE_CHECKING:  # at run time it brings Triton, which exists only inside a model's process
    from voice_clone.triton.responder import Responder

HEARTBEAT_SECONDS = 0.04

log = logging.getLogger(__name__)


class TalkerSink:
    """Answers a call with the chunks of its stream.

    Heartbeats. Inside an ensemble Triton copies a cancellation into a step's request only when it makes that request,
    and the talker's is made once (fault: ensemble-cancel). So between two chunks the talker sends heartbeats: chunks
    without frames that are not final. Each makes a request of code2wav, which sends no response to it, and which
    cancels the stream if the client has left. A heartbeat has the index of the next chunk; a direct caller of the
    talker skips it. One before the first chunk carries the reference and the voice, so that code2wav is ready when the
    prompt has been read. `info` of what carries a reference has its `origin`, which code2wav keeps to itself. `info` of
    a heartbeat has `soon` if code2wav is to hold batch work back until the first chunk comes.

    Errors. A stream that fails before anything was sent is answered with the error. Later it ends with a last chunk
    that has no frames and the error's message in `info`, as `error`: by then code2wav is at work, and an error beside
    it is what Triton 2.51 cannot take (fault: error-beside-step, see `codec.worker`).

    Args:
        stream: what the caller wants.
        responder: of its request.
        last_chunks: counts the last chunks that are on their way.
        clock: seconds, monotonic.
        texts: knows the stream's text, if it is open: every chunk then reports what of it was read.
    """

    def __init__(
        self,
        stream: TalkerStream,
        responder: Responder,
        last_chunks: LastChunks,
        clock: Callable[[], float] = time.monotonic,
        texts: TextStreams | None = None,
    ) -> None:
        self._stream = stream
        self._texts = texts
        self._responder = responder
        self._last_chunks = last_chunks
        self._clock = clock
        self._next_index = 0
        self._frames = 0
        self._used = False  # whether anything was sent
        self._last_sent = clock()  # when something was sent, or the stream began
        self._context, self._no_frames = stream.plan.context, stream.plan.context[:0]
        self._voice = stream.voice

    def chunk(self, chunk: FrameChunk) -> None:
        """Send a chunk; `context_codes` come with the first one, `info` with the first and the last."""
        context = self._context if chunk.index == 0 else self._no_frames
        final = chunk.finish is not None
        info = self._info(chunk) if chunk.index == 0 or final else {}
        info |= self._progress(chunk.frames)
        self._next_index, self._frames = chunk.index, chunk.frames
        self._send(chunk.payload, context, final, json.dumps(info) if info else "")
        self._next_index += 1
        if chunk.finish is not None:
            self._ended(chunk.finish)

    def fail(self, error: BaseException) -> None:
        """End the stream with an error."""
        self._ended(error.slug if isinstance(error, VoiceCloneError) else "internal")
        if not self._used:
            self._responder.fail(error)
            return
        if not isinstance(error, VoiceCloneError):
            log.error("stream %s failed", self._stream.stream_id, exc_info=error)
            error = Internal("the server failed to make this stream; try again")
        end = {"frames": self._frames, "finish_reason": error.slug, "error": error.message}
        info = {**self._stream.info, **self._progress(self._frames), **end}
        try:
            self._send(self._no_frames, self._no_frames, True, json.dumps(info))
        except Exception:
            log.exception("a last chunk could not be sent")
            self._responder.fail(error)

    def cancelled(self) -> bool:
        """Whether the caller has left. Inside an ensemble a heartbeat asks, and the answer is a call that cancels."""
        if self._responder.cancelled():
            return True
        return self._clock() - self._last_sent >= HEARTBEAT_SECONDS and not self._beat()

    def announce(self) -> None:
        """Send the first heartbeat now: code2wav then lets batch work wait for the first chunk."""
        if not self._used:
            self._beat({"soon": True})

    def _beat(self, info: Mapping[str, Any] = MappingProxyType({})) -> bool:
        """Send a heartbeat; returns whether it went out."""
        first = not self._used
        context = self._context if first else self._no_frames
        if context.size or (first and self._voice):
            info = {**info, "origin": self._stream.origin}
        try:
            self._send(self._no_frames, context, False, json.dumps(info) if info else "", voice=first)
        except Exception:
            log.exception("a heartbeat could not be sent")
            return False
        return True

    def _progress(self, frames: int) -> dict[str, Any]:
        return {} if self._texts is None else self._texts.progress(self._stream.stream_id, frames)

    def _ended(self, reason: str) -> None:
        if self._texts is not None:
            self._texts.ended(self._stream.stream_id, reason, self._frames)

    def _send(self, frames: NDArray[Any], context: NDArray[Any], final: bool, info: str, voice: bool = False) -> None:
        self._used, self._last_sent = True, self._clock()
        if final:
            self._last_chunks.sent(self._stream.secret_id)
        outputs: dict[str, Any] = {
            "stream_id": self._stream.secret_id,
            "codes": frames,
            "context_codes": context,
            "chunk_index": self._next_index,
            "final": final,
            "info": info,
        }
        if self._voice is not None:
            first = self._next_index == 0 and (final or len(frames) > 0)  # a stream may end without a frame
            outputs["voice"] = self._voice if first or voice else b""
        self._responder.send(outputs, final)

    def _info(self, chunk: FrameChunk) -> dict[str, Any]:
        timing = chunk.timing
        milliseconds = {
            "queue_ms": timing.queue,
            "prefill_ms": timing.prefill,
            "first_frame_ms": timing.first_frame,
            "first_chunk_ms": timing.first_chunk,
            "talker_ms": timing.generate,
        }
        if timing.text is not None:
            milliseconds["text_wait_ms"] = timing.text
        if chunk.finish is not None:
            milliseconds["chunk_gap_ms"] = timing.gap
        rounded: dict[str, Any] = {name: round(ms, 3) for name, ms in milliseconds.items()}
        end = {} if chunk.finish is None else {"finish_reason": chunk.finish}
        known = {"prompt_positions": chunk.prompt_positions, "frames": chunk.frames}
        origin = {"origin": self._stream.origin} if chunk.index == 0 else {}
        return {**self._stream.info, **origin, **known, **rounded, **end}
