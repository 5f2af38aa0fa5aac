"""`<family>_talker`: a prompt to a stream of frames; all streams in one batch.

in    prompt, prompt_info  STRING [1]  as `<family>_prompt` makes them
      temperature, top_p, repetition_penalty FP32 [1], top_k, max_frames INT32 [1], seed UINT64 [1],
      do_sample, non_streaming_mode BOOL [1], options STRING [1]: a JSON object. All optional.
      cancel               STRING [1]  instead of all else: the client of the stream of this id has left
out   stream_id, info STRING [1], codes, context_codes [-1, -1], chunk_index INT32 [1], final BOOL [1]
      voice                STRING [1]  where config.pbtxt has it: what the decoder needs of the voice, packed

The request parameter `deadline_ms` bounds the time of a whole stream. Metrics: see voice_clone/batching/statistics.py;
their names begin with `voice_clone_talker_`, and the label `family` tells families apart.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from voice_clone import compute
from voice_clone.autoregressive.warm_up import warm_up
from voice_clone.batching.engine import Engine
from voice_clone.batching.statistics import Statistics
from voice_clone.errors import InvalidArgument
from voice_clone.settings import Settings
from voice_clone.stages import KNOBS, StreamPlan, TalkerStage
from voice_clone.triton.model import Model
from voice_clone.triton.packing import pack, unpack
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder
from voice_clone.triton.server_stop import HttpEndpoint, ServerStop
from voice_clone.triton.stages.last_chunks import LastChunks
from voice_clone.triton.stages.talker_sink import TalkerSink, TalkerStream
from voice_clone.triton.telemetry import of_family

MAX_STREAM_ID = 128  # characters

log = logging.getLogger("voice_clone.talker")


class TalkerModel(Model):
    """The base of `<family>_talker`. A family sets `load_stage`."""

    stage = "talker"
    single = True  # one engine batches all streams
    load_stage: ClassVar[Callable[[Settings], TalkerStage[Any]]]

    def load(self, settings: Settings) -> None:
        """Load the talker, warm it up, start its engine."""
        compute.use_threads(settings)
        self._stage = stage = type(self).load_stage(settings)
        generator = stage.generator
        log.info("%d streams, %.1f MB of KV cache", generator.slots, generator.kv_bytes / 1e6)
        prefill_chunk = compute.prefill_chunk(settings)
        seconds = warm_up(generator, stage.example, prefill_chunk, settings.number("warm_up_seconds", 10.0))
        log.info("warmed up in %.1f s", seconds)
        voices = stage.known_prompts(settings.voice_dir)
        restored = generator.restore(voices, settings.number("restore_seconds", 10.0))
        log.info("restored the prompts' prefixes of %d voices", restored)
        self._engine = Engine(
            generator,
            schedule=settings.integers("chunk_frames", stage.chunk_frames),
            # A chunk that is sent early changes its samples by rounding, which a deterministic engine must not do.
            frame_seconds=0.0 if generator.deterministic else stage.frame_seconds,
            max_queue=settings.integer("max_queue", 64),
            prefill_chunk=prefill_chunk,
            statistics=Statistics("voice_clone_talker_", of_family(self.family), stage.frame_seconds),
        )
        self._last_chunks = LastChunks()
        endpoint = HttpEndpoint.of_parent()
        self._server_stop = ServerStop(endpoint, self._drain) if endpoint else None

    def handle(self, request: Request, responder: Responder) -> None:
        """Queue a stream, or cancel one."""
        cancelled = request.text("cancel")
        if cancelled is not None:
            self._engine.cancel(cancelled)
            self._last_chunks.answered(cancelled)
            responder.end()
            return
        plan, stream, deadline = read_call(request, self._stage, self.family)
        sink = TalkerSink(stream, responder, self._last_chunks)
        self._engine.submit(stream.stream_id, plan.request, sink, deadline)

    def close(self) -> None:
        """Let the running streams end."""
        if self._server_stop is not None:
            self._server_stop.close()
        self._engine.close()

    def _drain(self, seconds: float) -> None:
        self._engine.drain(seconds)
        if not self._last_chunks.wait():
            log.warning("a stream's last chunk was not decoded in time")


class Inputs(Protocol):
    """The tensors and parameters of a request, None for an absent one; see `Request`."""

    def raw(self, name: str) -> bytes | None:
        """A STRING tensor of one element as bytes."""

    def json_object(self, name: str) -> dict[str, Any]:
        """A STRING tensor of one element that holds a JSON object; empty where there is none."""

    def number(self, name: str) -> Any:
        """A tensor of one element as a Python bool, int or float."""

    def parameter(self, name: str) -> Any:
        """A parameter of the request."""


def read_call(
    inputs: Inputs, stage: TalkerStage[Any], family: str
) -> tuple[StreamPlan[Any], TalkerStream, float | None]:
    """What a caller wants of the talker: the plan of the stream, what its sink needs, and its deadline.

    Raises:
        InvalidArgument: something is missing, of the wrong form, or out of range.
    """
    packed = inputs.raw("prompt")
    if packed is None:
        raise InvalidArgument(f"prompt is missing; {family}_prompt makes it")
    info = inputs.json_object("prompt_info")
    stream_id = info.get("stream_id")
    if not isinstance(stream_id, str) or not 1 <= len(stream_id) <= MAX_STREAM_ID:
        raise InvalidArgument(f"prompt_info must have a stream_id of 1 to {MAX_STREAM_ID} characters")
    knobs = {name: value for name in KNOBS if (value := inputs.number(name)) is not None}
    knobs.setdefault("seed", secrets.randbits(64))
    plan = stage.plan(unpack("prompt", packed), knobs, inputs.json_object("options"))
    told = {**info, **plan.info, "seed": knobs["seed"]}
    voice = pack(plan.voice) if plan.voice else None
    return plan, TalkerStream(stream_id, plan.context, told, voice), _deadline(inputs.parameter("deadline_ms"), info)


def _deadline(milliseconds: Any, info: Mapping[str, Any]) -> float | None:
    """The point in time that is `milliseconds` after the request came in; the prompt's share of them is over."""
    if milliseconds is None:
        return None
    wrong = isinstance(milliseconds, bool) or not isinstance(milliseconds, (int, float))
    if wrong or not (0 < milliseconds < math.inf):
        raise InvalidArgument("deadline_ms must be a number of milliseconds above 0")
    spent = info.get("prompt_ms", 0.0)
    spent = spent if isinstance(spent, (int, float)) and math.isfinite(spent) and spent > 0 else 0.0
    return time.monotonic() + 1e-3 * float(milliseconds - spent)
