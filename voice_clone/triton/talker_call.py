"""A call of the talker: its tensors and parameters in, its chunks out as tensors again."""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from voice_clone.batching.stream import Chunk
from voice_clone.errors import Internal, InvalidArgument, VoiceCloneError
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.talker_request import TalkerRequest, build_request
from voice_clone.triton.last_chunks import LastChunks

KNOBS = (
    *("do_sample", "temperature", "top_k", "top_p", "repetition_penalty"),
    *("subtalker_do_sample", "subtalker_temperature", "subtalker_top_k", "subtalker_top_p"),
)
PROMPT = ("role_ids", "text_ids", "speaker_embedding", "reference_ids", "reference_codes", "language_id", "stream_id")
MAX_STREAM_ID = 128  # characters
BEAT_SECONDS = 0.04  # half a frame of speech

log = logging.getLogger(__name__)


class Inputs(Protocol):
    """The tensors and parameters of a request; None for what is absent."""

    def array(self, name: str) -> NDArray[Any] | None:
        """A tensor."""

    def text(self, name: str) -> str | None:
        """A STRING tensor of one element."""

    def json_object(self, name: str) -> dict[str, Any]:
        """A STRING tensor of one element that holds a JSON object; empty where there is none."""

    def number(self, name: str) -> Any:
        """A tensor of one element as a Python bool, int or float."""

    def parameter(self, name: str) -> Any:
        """A parameter of the request."""


class Answer(Protocol):
    """Where the answers of one request go."""

    def send(self, outputs: Mapping[str, Any], final: bool = False) -> None:
        """One response."""

    def fail(self, error: BaseException) -> None:
        """End with an error."""

    def cancelled(self) -> bool:
        """Whether the caller has gone."""


@dataclass(frozen=True, eq=False)
class TalkerCall:
    """One stream that a caller wants.

    Attributes:
        stream_id: names it.
        request: what the generator starts it with.
        info: what the stages before told of it, and the seed.
        deadline: on the clock of `time.monotonic()`, if it has one.
    """

    stream_id: str
    request: TalkerRequest
    info: dict[str, Any]
    deadline: float | None

    @classmethod
    def read(cls, inputs: Inputs, config: Qwen3TTSConfig, max_length: int) -> TalkerCall:
        """The call that `inputs` describe.

        Args:
            max_length: positions of a slot.

        Raises:
            InvalidArgument: something is missing, of the wrong form, or out of range.
        """
        tensors = {name: inputs.array(name) for name in PROMPT}
        for name, tensor in tensors.items():
            if tensor is None:
                raise InvalidArgument(f"{name} is missing; qwen3_tts_prompt makes it")
        stream_id = inputs.text("stream_id") or ""
        if not 1 <= len(stream_id) <= MAX_STREAM_ID:
            raise InvalidArgument(f"stream_id must have 1 to {MAX_STREAM_ID} characters")
        language = inputs.number("language_id")
        prompt = Prompt(
            **{name: tensors[name] for name in PROMPT[:5]},  # type: ignore[arg-type]
            language_id=None if language < 0 else language,
            non_streaming_mode=bool(inputs.number("non_streaming_mode")),
        )
        seed = inputs.number("seed")
        seed = secrets.randbits(64) if seed is None else seed
        knobs = {name: inputs.number(name) for name in KNOBS}
        request = build_request(prompt, knobs, seed, inputs.number("max_frames"), config, max_length)
        info = inputs.json_object("prompt_info")
        return cls(stream_id, request, {**info, "seed": seed}, _deadline(inputs.parameter("deadline_ms"), info))


class TalkerSink:
    """Answers a call with the chunks of its stream.

    Beats. Inside an ensemble Triton 2.51 tells a step that the client has gone only if the step's request is made
    afterwards; the talker's is made once. So between two chunks it sends beats, chunks without frames that are not
    final: each makes a request of code2wav, which answers it with nothing and cancels the stream if the client has
    gone. A beat has the index of the chunk to come; whoever calls the talker directly skips it. One before the first
    chunk brings the reference along, so that code2wav is ready for it when the prompt has been read.

    Errors. A stream that fails before anything was sent is answered with the error. Later it ends with a last chunk
    that has no frames and the error's message in `info`, as `error`: Triton 2.51 never releases an ensemble's request
    if a step answers with an error while another step is at work, and by then code2wav is.
    """

    def __init__(self, call: TalkerCall, answer: Answer, last_chunks: LastChunks) -> None:
        self._call = call
        self._answer = answer
        self._last_chunks = last_chunks
        self._next_index = 0
        self._frames = 0
        self._used = False  # whether anything was sent
        self._asked = time.monotonic()  # when something was sent, or the stream began
        self._no_codes = call.request.prompt.reference_codes[:0]

    def chunk(self, chunk: Chunk) -> None:
        """Send a chunk; `context_codes` come with the first one, `info` with the first and the last."""
        context = self._call.request.prompt.reference_codes if chunk.index == 0 else self._no_codes
        final = chunk.finish is not None
        told = json.dumps(self._told(chunk)) if chunk.index == 0 or final else ""
        self._send(chunk.codes, context, final, told)
        self._next_index, self._frames = chunk.index + 1, chunk.frames

    def fail(self, error: BaseException) -> None:
        """End the stream with an error."""
        if not self._used:
            self._answer.fail(error)
            return
        if not isinstance(error, VoiceCloneError):
            log.error("stream %s failed", self._call.stream_id, exc_info=error)
            error = Internal("the server failed to make this stream; try again")
        told = {**self._call.info, "frames": self._frames, "finish_reason": error.slug, "error": error.message}
        try:
            self._send(self._no_codes, self._no_codes, True, json.dumps(told))
        except Exception:
            log.exception("a last chunk could not be sent")
            self._answer.fail(error)

    def cancelled(self) -> bool:
        """Whether the caller has gone; inside an ensemble a beat asks, and the answer is a call that cancels."""
        if self._answer.cancelled():
            return True
        if time.monotonic() - self._asked >= BEAT_SECONDS:
            context = self._no_codes if self._used else self._call.request.prompt.reference_codes
            try:
                self._send(self._no_codes, context, False, "")
            except Exception:
                log.exception("a beat could not be sent")
                return True
        return False

    def _send(self, codes: NDArray[np.int32], context: NDArray[np.int32], final: bool, told: str) -> None:
        self._used, self._asked = True, time.monotonic()
        if final:
            self._last_chunks.sent(self._call.stream_id)
        outputs = {
            "stream_id": self._call.stream_id,
            "codes": codes,
            "context_codes": context,
            "chunk_index": self._next_index,
            "final": final,
            "info": told,
        }
        self._answer.send(outputs, final)

    def _told(self, chunk: Chunk) -> dict[str, Any]:
        timing = chunk.timing
        told = {
            "queue_ms": timing.queue,
            "prefill_ms": timing.prefill,
            "first_frame_ms": timing.first_frame,
            "talker_ms": timing.generate,
        }
        if chunk.finish is not None:
            told["chunk_gap_ms"] = timing.gap
        rounded: dict[str, Any] = {name: round(ms, 3) for name, ms in told.items()}
        end = {} if chunk.finish is None else {"finish_reason": chunk.finish}
        positions = {"prompt_positions": chunk.prompt_positions}
        return {**self._call.info, **positions, "frames": chunk.frames, **rounded, **end}


def _deadline(milliseconds: Any, info: Mapping[str, Any]) -> float | None:
    """The point in time that is `milliseconds` after the request came in; what the prompt took is over already."""
    if milliseconds is None:
        return None
    wrong = isinstance(milliseconds, bool) or not isinstance(milliseconds, (int, float))
    if wrong or not (0 < milliseconds < math.inf):
        raise InvalidArgument("deadline_ms must be a number of milliseconds above 0")
    spent = info.get("prompt_ms", 0.0)
    spent = spent if isinstance(spent, (int, float)) and math.isfinite(spent) and spent > 0 else 0.0
    return time.monotonic() + 1e-3 * float(milliseconds - spent)
