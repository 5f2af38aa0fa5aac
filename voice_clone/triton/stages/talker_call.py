"""A call of the talker: what its tensors and parameters ask for."""

from __future__ import annotations

import math
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from voice_clone.errors import InvalidArgument
from voice_clone.lru_cache import Origin, scope_of
from voice_clone.request_fields import KNOBS
from voice_clone.stages.protocols import StreamPlan, TalkerStage, check_reference
from voice_clone.triton.request import Request
from voice_clone.triton.stages.streams import with_secret
from voice_clone.triton.tensors import pack, unpack

MAX_STREAM_ID = 128  # characters


@dataclass(frozen=True, eq=False)
class TalkerStream:
    """A stream that a caller wants.

    Attributes:
        stream_id: names it; a caller knows it.
        secret_id: names it between talker and code2wav; a secret of these two, by `with_secret`.
        plan: of the family's talker; its context goes with the first chunk.
        info: what the stages so far report of it.
        voice: packed arrays that go with the first chunk, for a decoder that needs the voice; None: it does not.
        origin: of the context.
        deadline: for its end, in seconds of the monotonic clock.
    """

    stream_id: str
    secret_id: str
    plan: StreamPlan[Any]
    info: Mapping[str, Any]
    voice: bytes | None = None
    origin: Origin = field(default_factory=Origin.unknown)
    deadline: float | None = None

    def saying(self, more: Mapping[str, Any]) -> TalkerStream:
        """The same stream, of which more is reported."""
        return replace(self, info={**self.info, **more})


def read_call(request: Request, stage: TalkerStage[Any, Any], family: str, max_reference_frames: int) -> TalkerStream:
    """What a caller wants of the talker.

    Args:
        max_reference_frames: that code2wav takes.

    Raises:
        InvalidArgument: something is missing, of the wrong form, or out of range.
    """
    packed = request.raw("prompt")
    if packed is None:
        raise InvalidArgument(f"`prompt` is missing; {family}_prompt makes it")
    info = request.json_object("prompt_info")
    stream_id = info.get("stream_id")
    if not isinstance(stream_id, str) or not 1 <= len(stream_id) <= MAX_STREAM_ID:
        raise InvalidArgument(f"`prompt_info` must have a stream_id of 1 to {MAX_STREAM_ID} characters")
    knobs = {name: value for name in KNOBS if (value := request.number(name)) is not None}
    knobs.setdefault("seed", secrets.randbits(64))
    options, owner = request.json_object("options"), request.parameter("owner")
    plan = stage.plan(unpack("prompt", packed), knobs, options)
    check_reference(len(plan.context), max_reference_frames)
    origin = Origin.from_json(info.pop("origin", None))
    # The prefix may have an owner's words in it, as how to speak: what owners share of a voice has none.
    private = origin._replace(scope=f"{origin.scope} {scope_of(owner)}") if options and owner is not None else origin
    plan = replace(plan, request=replace(plan.request, origin=private))
    known = {**info, **plan.info, "seed": knobs["seed"]}
    voice = pack(plan.voice) if plan.voice else None
    secret_id = with_secret(stream_id, f"{family}_talker")
    deadline = _deadline(request.parameter("deadline_ms"), info, request.came)
    return TalkerStream(stream_id, secret_id, plan, known, voice, origin, deadline)


def _deadline(milliseconds: Any, info: Mapping[str, Any], came: float) -> float | None:
    """The point in time that is `milliseconds` after the request came in; the prompt's share of them is over."""
    if milliseconds is None:
        return None
    wrong = isinstance(milliseconds, bool) or not isinstance(milliseconds, (int, float))
    if wrong or not (0 < milliseconds < math.inf):
        raise InvalidArgument("`deadline_ms` must be a number of milliseconds above 0")
    spent = info.get("prompt_ms", 0.0)
    spent = spent if isinstance(spent, (int, float)) and 0 < spent <= sys.float_info.max else 0.0
    return came + 1e-3 * float(milliseconds - spent)
