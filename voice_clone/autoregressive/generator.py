"""Many streams of codec frames from one talker. Knows nothing of queues or servers.

Streams sit in slots. Every step advances any subset of them by one frame in one batch: in shapes that follow the live
streams (eager_step.py), or in fixed shapes that CUDA graphs hold (static_step.py).

The order of floating-point sums depends on the shape of a batch, so a stream's logits change by rounding with the other
streams in it, and a code may flip where two codes are almost equally likely. A deterministic generator always computes
all slots, occupied or not, and lets each stream attend by itself. Shapes are then always the same, and a request with a
seed gives the same codes, bit for bit, alone and beside any others.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from voice_clone.autoregressive.eager_step import EagerStep
from voice_clone.autoregressive.frame_model import FrameModel
from voice_clone.autoregressive.philox import Draws
from voice_clone.autoregressive.prefixes import PromptPrefixes
from voice_clone.autoregressive.repetition import Repetition
from voice_clone.autoregressive.rows import Row, knobs_of
from voice_clone.autoregressive.sampling import knobs
from voice_clone.autoregressive.static_step import StaticStep
from voice_clone.autoregressive.talker import MoreText, Prefix, Talker, TalkerRequest, TextFeed, TextReader
from voice_clone.batching.payload import PayloadForm
from voice_clone.errors import InvalidArgument
from voice_clone.layers.graphs import GraphRunner
from voice_clone.lru_cache import Origin

P = TypeVar("P")

log = logging.getLogger(__name__)

Finish = Literal["stop", "length", "budget", "runaway", "text_timeout", "error"]


@dataclass(frozen=True, eq=False)
class Frame:
    """What one step brought for one stream.

    Attributes:
        payload: codes int32 [codebooks]; None if the stream ended without a frame (`stop`, `error`).
        finish: why the stream ended with this frame, or None if it goes on. `stop`: the model said so; `length`:
            it has the frames that its caller wanted; `budget`: it has all frames that its text is granted, and has
            missed its end; `runaway`: its text is read and it repeats itself, so it has missed its end, too;
            `text_timeout`: the model said so, but its text was closed without an end; `error`: the model's values were
            not finite.
    """

    payload: npt.NDArray[np.int32] | None
    finish: Finish | None


class _Greedy:
    """Sampling of a stream that makes no frames: `restore` only reads its prompt."""

    seed = 0
    repetition_penalty = 1.0
    first = others = knobs(False, 1.0, 0, 1.0)


@dataclass
class _Stream:
    prefix: Prefix
    text: TextFeed
    knobs: npt.NDArray[np.float64]
    draws: Draws
    max_frames: int
    limit: Finish  # the finish after so many
    ending: Finish = field(default="stop", init=False)  # the finish where the model says so
    recent: deque[int]  # codebook 0 of the latest frames
    origin: Origin
    read: int = 0  # prompt positions prefilled
    frames: int = 0  # made so far
    newest: npt.NDArray[np.int32] | None = None  # the last of them
    finish: Finish | None = None
    repetition: Repetition = field(default_factory=Repetition)

    @property
    def unread(self) -> int:
        return self.text.length - self.read

    @property
    def position(self) -> int:
        """Where the newest frame goes, after the prompt and the frames before."""
        return self.text.length + self.frames - 1

    def row(self, slot: int, min_frames: int) -> Row:
        """What a step needs of it."""
        may_stop, text = self.frames >= min_frames, self.text.row(self.frames)
        draws = self.draws.of(self.frames)
        return Row(slot, self.knobs, draws, may_stop, self.newest, self.position, text, self.recent)


class Generator(Generic[P]):
    """A talker's `slots` concurrent streams; P is the type of its prompts. Not thread-safe: one engine thread calls it.

    A stream's life: `start(slot, ...)`, `prefill(slot, ...)` until its prompt is read, `step([slot, ...])` until a
    frame has a `finish`, `free(slot)`. A prompt whose text is open can be extended in between, and its stream moves
    only while it is `ready`: where the text ends for now, there is nothing that the model was trained to read instead.
    """

    def __init__(
        self,
        talker: Talker[P],
        slots: int,
        max_length: int,
        deterministic: bool = False,
        runaway_frames: int | None = None,
        runner: GraphRunner | None = None,
        prefix_bytes: int = 0,
    ) -> None:
        """Preallocates all key-value memory, on the device and in the dtype of the talker's weights.

        Args:
            slots: the most streams at once.
            max_length: the most positions of one stream: prompt + frames.
            deterministic: neighbours change no bit of a stream; costs the work of all slots in every step.
            runaway_frames: ends a stream that repeats itself for so many frames after its text ends; None: never.
            runner: steps have fixed shapes and run by it, as a GPU wants it; None: shapes follow the streams.
            prefix_bytes: memory for prefixes that need not be read again; for a repeatable stack alone.
        """
        self.talker = talker
        self.slots, self.max_length = slots, max_length
        self.payload = PayloadForm(talker.codebooks)
        self.deterministic = deterministic
        self._runaway_frames = runaway_frames
        self._streams: dict[int, _Stream] = {}
        self._model = FrameModel(talker, slots, max_length, idle_rows=deterministic or runner is not None)
        self.prefixes = PromptPrefixes(self._model.cache, prefix_bytes if talker.stack.repeatable else 0)
        self._step: EagerStep | StaticStep = EagerStep(self._model, deterministic)
        if runner is not None:
            self._step = StaticStep(self._model, runner, deterministic)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the talker's and the code predictor's key-value memory."""
        frames = self._model.frame_cache
        return self._model.cache.nbytes + (0 if frames is None else frames.nbytes)

    @property
    def live(self) -> frozenset[int]:
        """The slots that hold a stream, finished or not."""
        return frozenset(self._streams)

    @torch.inference_mode()
    def prepare(self) -> None:
        """Record the CUDA graphs, if steps use them, before there are streams: a later recording would delay them."""
        if isinstance(self._step, StaticStep):
            self._step.prepare()

    @torch.inference_mode()
    def restore(self, prompts: Iterable[tuple[Origin, P]], seconds: float) -> int:
        """Read the prefixes of prompts, the most wanted first, as many as fit and as `seconds` allow. For use without
        streams.

        Returns: how many.
        """
        deadline = time.monotonic() + seconds
        learned: list[tuple[Prefix, Origin]] = []
        for origin, prompt in prompts:
            if time.monotonic() > deadline:
                break
            try:
                prefix = self.talker.prefix(prompt)
                if not self.prefixes.has_room(prefix):
                    break
                self.start(0, TalkerRequest(prompt, _Greedy(), 1, origin=origin))
                if unread := prefix.length - self._streams[0].read:
                    self.prefill(0, unread)
                learned.append((prefix, origin))
            except InvalidArgument:  # a prompt of another checkpoint
                pass
            except Exception:  # whatever a file holds, the others serve
                log.exception("the prompt of a known voice could not be read")
            self._streams.pop(0, None)
        for prefix, origin in reversed(learned):  # the most wanted one is then the last to be evicted
            self.prefixes.read(prefix, 0, origin)
        self._model.cache.clear()
        return len(learned)

    @torch.inference_mode()
    def start(self, slot: int, request: TalkerRequest[P]) -> int:
        """Give a free slot to a stream. Nothing is changed if this raises.

        Returns: the positions of its prompt that `prefill` must read: those that are not in the prefix cache.
        Raises:
            InvalidArgument: the prompt does not suit the checkpoint, or prompt and frames do not fit the slot.
        """
        if slot in self._streams or not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} is taken or none of 0..{self.slots - 1}")
        prompt, max_frames = request.prompt, request.max_frames
        self.talker.check(prompt)
        if max_frames < 1:
            raise InvalidArgument(f"max_frames must be at least 1, got {max_frames}")
        length = self.talker.prompt_length(prompt)
        if length + max_frames > self.max_length:
            raise InvalidArgument(
                f"text and reference take {length} positions and max_frames {max_frames}; "
                f"together at most {self.max_length} fit"
            )
        text = TextFeed(self.talker.embed_prompt(prompt))
        self._model.used[slot] = False
        draws = Draws(request.sampling.seed, self.talker.draws)
        prefix = self.talker.prefix(prompt)
        known = self.prefixes.read(prefix, slot, request.origin)
        limit: Finish = "budget" if request.budgeted else "length"
        recent: deque[int] = deque(maxlen=self.talker.recent_codes)
        sampling = knobs_of(request.sampling)
        self._streams[slot] = _Stream(prefix, text, sampling, draws, max_frames, limit, recent, request.origin, known)
        return length - known

    @torch.inference_mode()
    def extend(self, slot: int, more: MoreText) -> None:
        """Append to the text of a stream whose text is open."""
        stream = self._streams[slot]
        ids, rows = torch.from_numpy(more.ids.astype(np.int64)), stream.text.embeds[:0]
        rows = cast(TextReader, self.talker).embed_text(ids) if len(ids) else rows
        stream.text.extend(rows, more.last, stream.frames)
        stream.max_frames, stream.limit = more.max_frames, "budget" if more.budgeted else "length"
        if more.cut:
            stream.ending = "text_timeout"

    def ready(self, slot: int, count: int) -> bool:
        """Whether the text is there for the next `count` positions of a stream's prompt; 0: for its next frame."""
        stream = self._streams[slot]
        if stream.unread:
            return stream.read + (count or stream.unread) <= len(stream.text.embeds)
        return stream.text.covers(stream.frames)

    @torch.inference_mode()
    def prefill(self, slot: int, count: int) -> None:
        """Read the next `count` positions of a started stream's prompt."""
        stream = self._streams[slot]
        embeds = stream.text.embeds[stream.read : stream.read + count]
        self._model.hidden[slot] = self.talker.stack.prefill(self._model.cache, slot, embeds, stream.read)
        before, stream.read = stream.read, stream.read + count
        if before < stream.prefix.length <= stream.read:
            self.prefixes.store(stream.prefix, slot, stream.origin)

    @torch.inference_mode()
    def step(self, slots: Sequence[int]) -> list[Frame]:
        """Make the next frame of every listed stream, in the order of `slots`; of a prompt, first read what is left.

        The talker runs at the beginning of a step, on the frame before, so a stream's first frame costs the code
        predictor alone. If this raises, no stream has moved, and the step may be tried again.
        """
        streams = [self._streams[slot] for slot in slots]
        if any(stream.finish for stream in streams):
            raise ValueError("a listed stream has ended; free its slot")
        if not streams:
            return []
        for slot, stream in zip(slots, streams, strict=True):
            if stream.unread:
                self.prefill(slot, stream.unread)
        least = self.talker.min_frames
        codes, finite = self._step.run([stream.row(slot, least) for slot, stream in zip(slots, streams, strict=True)])
        return [self._frame(stream, row, bool(ok)) for stream, row, ok in zip(streams, codes, finite, strict=True)]

    def free(self, slot: int) -> None:
        """End the stream in `slot`, finished or not; the slot may be started again."""
        stream = self._streams.pop(slot)
        if stream.finish == "error" or not stream.frames:  # its values are not finite, or not checked yet
            self._model.cache.wipe(slot, stream.position + 1)

    def reset(self) -> None:
        """Drop all streams, in whatever state, and everything that they have written."""
        self._streams = {}
        self.prefixes.clear()
        self._model.cache.clear()

    def _frame(self, stream: _Stream, codes: npt.NDArray[np.int32], finite: bool) -> Frame:
        if not finite:
            stream.finish = "error"
            return Frame(None, "error")
        if codes[0] == self.talker.end_code:
            stream.finish = stream.ending
            return Frame(None, stream.ending)
        stream.newest = codes
        stream.recent.append(int(codes[0]))
        stream.frames += 1
        if stream.frames == stream.max_frames:
            stream.finish = stream.limit
        elif self._is_runaway(stream, int(codes[0])):
            stream.finish = "runaway"
        return Frame(codes, stream.finish)

    def _is_runaway(self, stream: _Stream, code0: int) -> bool:
        if self._runaway_frames is None or not stream.text.ended(stream.frames):
            return False
        return stream.repetition.add(code0) >= self._runaway_frames
