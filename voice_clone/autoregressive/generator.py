"""Many streams of frames from one talker, as many as fit the machine. Knows nothing of queues or servers.

Each stream has a slot. A step advances any of the streams by one frame, in one batch. Its shapes follow the running
streams (`EagerStep`), or are fixed, for CUDA graphs (`StaticStep`). With fixed shapes the memory of a stream may move
to another slot, so that one late stream in a high slot does not keep the batch large. The caller does not notice that.

The order of floating-point sums depends on the shape of a batch, so a stream's logits change by rounding with the other
streams in it, and a code may flip where two codes are almost equally likely. A deterministic generator always computes
all slots, occupied or not, and lets each stream attend by itself. Shapes are then always the same, and a request with a
seed gives the same codes, bit for bit, alone and beside any others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy.typing as npt

from voice_clone import compute
from voice_clone.array_kinds import on_gpu, without_gradients, zeros
from voice_clone.autoregressive.generation_state import GenerationState
from voice_clone.autoregressive.prefixes import PromptPrefixes
from voice_clone.autoregressive.steps import EagerStep, FrameModel
from voice_clone.autoregressive.talker import MoreText, Prefix, Talker, TalkerRequest, TextFeed, TextReader
from voice_clone.batching.source import Example, Frame
from voice_clone.errors import InvalidArgument
from voice_clone.lru_cache import CacheUsage, Origin
from voice_clone.settings import TalkerSettings

if TYPE_CHECKING:  # a talker in native code does without torch
    from voice_clone.autoregressive.static_step import StaticStep
    from voice_clone.layers.graphs import GraphRunner

P = TypeVar("P")

WARM_UP_FRAMES = 2  # the first needs no talker step, the second does
REFERENCE_FRAMES = (0, 64, 192)
CPU_STREAMS, MOST_STREAMS = 8, 64
CPU_SPARE = 2  # slots for callers that have fewer than their share
GPU_SPARE = 32  # of so many slots one is spare
# Of the memory that is free when the talker's weights are there. The rest is for graphs and prompts, and for the other
# models, which load at the same time.
SHARE = 0.7
PREFIX_SHARE = 0.05  # likewise, for the prefixes of voices

log = logging.getLogger(__name__)


class Generator(Generic[P]):
    """A talker's `slots` concurrent streams; P is the type of its prompts. Not thread-safe: one engine thread calls it.

    A stream's life: `start(slot, ...)`, `prefill({slot: ...})` until its prompt is read, `step([slot, ...])` until a
    frame has a `finish`, `free(slot)`. A prompt whose text is open can be extended in between, and its stream moves
    only while it is `ready`: where the text ends for now, there is nothing that the model was trained to read instead.

    Attributes:
        model: the talker with the memory of all streams.
        streams: the live ones, by slot.
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
        prefill_chunk: int = 256,
        spare_slots: int = 0,
    ) -> None:
        """Preallocates all key-value memory, on the device and in the dtype of the talker's weights.

        Args:
            slots: the most streams at once.
            max_length: the most positions of one stream: prompt + frames.
            deterministic: neighbours change no bit of a stream; costs the work of all slots in every step.
            runaway_frames: ends a stream that repeats itself for so many frames after its text ends; None: never.
            runner: steps have fixed shapes and run by it, as a GPU wants it; None: shapes follow the streams.
            prefix_bytes: memory for prefixes that need not be read again; for a repeatable stack, or fixed shapes.
            prefill_chunk: positions of prompts that steps of fixed shapes read at once.
            spare_slots: of the slots, see `TalkerSource`.
        """
        self.talker = talker
        self.slots, self.max_length = slots, max_length
        self.spare_slots = spare_slots
        self.payload = talker.head.form
        self.deterministic = deterministic
        self._runaway_frames = runaway_frames
        self.streams: dict[int, GenerationState] = {}
        self.model = FrameModel(talker, slots, max_length, idle_rows=deterministic or runner is not None)
        repeatable = talker.stack.repeatable or runner is not None
        self.prefixes = PromptPrefixes(self.model.cache, prefix_bytes if repeatable else 0)
        self._step: EagerStep | StaticStep
        if runner is None:
            self._step = EagerStep(self.model, deterministic)
        else:
            from voice_clone.autoregressive.static_step import StaticStep

            self._step = StaticStep(self.model, runner, deterministic, prefill_chunk)

    @property
    def memory_bytes(self) -> int:
        keys_and_values: int = self.model.cache.nbytes + self.model.memory.nbytes
        return keys_and_values

    @property
    def live(self) -> frozenset[int]:
        """The slots that hold a stream, finished or not."""
        return frozenset(self.streams)

    @property
    def prompts_at_once(self) -> int:
        return self._step.prompts_at_once

    @without_gradients
    def prepare(self) -> None:
        """Record the CUDA graphs, if steps use them, before there are streams: a later recording would delay them."""
        self._step.prepare()

    @without_gradients
    def restore(self, prompts: Iterable[tuple[Origin, P]], seconds: float) -> int:
        deadline = time.monotonic() + seconds
        learned: list[tuple[Prefix, Origin]] = []
        for origin, prompt in prompts:
            if time.monotonic() > deadline:
                break
            try:
                prefix = self.talker.prefix(prompt)
                if not self.prefixes.has_room(prefix, origin):
                    break
                self._start(0, prompt, 1, origin)
                if unread := prefix.length - self.streams[0].read:
                    self.prefill({0: unread})
                learned.append((prefix, origin))
            except InvalidArgument:  # a prompt of another checkpoint
                pass
            except Exception:  # whatever a file holds, the others serve
                log.exception("the prompt of a known voice could not be read")
            self.streams.pop(0, None)
        for prefix, origin in reversed(learned):  # the most wanted one is then the last to be evicted
            self.prefixes.read(prefix, 0, origin)
        self.model.cache.clear()
        return len(learned)

    def forget(self, voices: Collection[str]) -> CacheUsage:
        return self.prefixes.forget(voices)

    def warm_up(self, example: Example[TalkerRequest[P]], prefill_chunk: int, seconds: float) -> float:
        """Prefill prompts of a few lengths, and step 1, 2, ... all slots together, so that the first request finds
        memory, kernels and threads ready. As of `TalkerSource`.

        A repeatable stack runs the same code for all shapes: there one slot and a short prompt are enough.
        """
        started = time.monotonic()
        self.prepare()
        began = time.monotonic()
        for slot in range(1 if self.talker.stack.repeatable else self.slots):
            request = example(REFERENCE_FRAMES[slot % len(REFERENCE_FRAMES)], WARM_UP_FRAMES * self.slots + 1)
            request = replace(request, endless=True)  # a model may end such speech before all slots have been stepped
            if time.monotonic() - began > seconds:
                break
            left = self.start(slot, request)
            while left:
                count = min(left, prefill_chunk)
                self.prefill({slot: count})
                left -= count
            for _ in range(WARM_UP_FRAMES):
                self.step(range(slot + 1))
        self.reset()
        return time.monotonic() - started

    @without_gradients
    def start(self, slot: int, request: TalkerRequest[P]) -> int:
        """Give a free slot to a stream. Nothing is changed if this raises.

        Returns: the positions of its prompt that `prefill` must read: those that are not in the prefix cache.
        Raises:
            InvalidArgument: the prompt does not suit the checkpoint, or prompt and frames do not fit the slot.
        """
        columns = self.talker.head.columns(request.sampling)
        stream = self._start(slot, request.prompt, request.max_frames, request.origin)
        stream.sampling, stream.draws = columns, self.talker.head.new_draws(request.sampling.seed)
        stream.limit, stream.endless = "budget" if request.budgeted else "length", request.endless
        stream.min_frames, stream.pauses = max(self.talker.min_frames, request.min_frames), request.pauses
        stream.must_read, after = request.must_read, request.frames_after_end
        stream.after_end = int(self.talker.head.keeps_ending_frame) if after is None else after
        return stream.unread

    def _start(self, slot: int, prompt: P, max_frames: int, origin: Origin) -> GenerationState:
        """A stream whose draws are not known yet. Nothing is changed if this raises."""
        if slot in self.streams or not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} is taken or none of 0..{self.slots - 1}")
        talker = self.talker
        talker.check(prompt)
        if max_frames < 1:
            raise InvalidArgument(f"`max_frames` must be at least 1, got {max_frames}")
        length = talker.prompt_length(prompt)
        if length + max_frames > self.max_length:
            raise InvalidArgument(
                f"`text` and reference take {length} positions and `max_frames` {max_frames}; "
                f"together at most {self.max_length} fit"
            )
        text = TextFeed(talker.embed_prompt(prompt))
        place = self._free_place(slot)
        talker.head.clear(self.model.memory, place)
        prefix = talker.prefix(prompt)
        known = self.prefixes.read(prefix, place, origin)
        stream = GenerationState(
            place, prefix, text, talker.head.neutral, talker.head.new_draws(0), max_frames, origin, known
        )
        self.streams[slot] = stream
        return stream

    @without_gradients
    def extend(self, slot: int, more: MoreText) -> None:
        stream = self.streams[slot]
        rows = stream.text.embeds[:0]
        if len(more.ids):
            rows = cast(TextReader, self.talker).embed_text(more.ids)
        stream.text.extend(rows, more.last, stream.frames)
        stream.max_frames, stream.limit = more.max_frames, "budget" if more.budgeted else "length"
        if more.cut:
            stream.ending = "text_timeout"

    def ready(self, slot: int, count: int) -> bool:
        stream = self.streams[slot]
        if stream.unread:
            return stream.read + (count or stream.unread) <= len(stream.text.embeds)
        return stream.text.covers(stream.begun)

    @without_gradients
    def prefill(self, counts: Mapping[int, int]) -> None:
        streams = {slot: self.streams[slot] for slot in counts}
        self._step.read([stream.piece(counts[slot]) for slot, stream in streams.items()])
        for slot, stream in streams.items():
            before, stream.read = stream.read, stream.read + counts[slot]
            if before < stream.prefix.length <= stream.read:
                self.prefixes.store(stream.prefix, stream.place, stream.origin)

    one_by_one = False

    @property
    def ahead(self) -> bool:
        return self._step.ahead

    @without_gradients
    def begin(self, slots: Sequence[int]) -> Callable[[], list[Frame | None]]:
        """Begin the next frame of every listed stream; of a prompt, first read what is left.

        The stack runs at the beginning of a step, on the frame before, so a stream's first frame costs the head alone.
        If this raises, no stream has moved, and it may be tried again.

        Returns: what waits for the frames, in the order of `slots`. None: the stream has ended meanwhile, or all its
            frames were begun before.
        """
        streams = [self.streams[slot] for slot in slots]
        if any(stream.finish for stream in streams):
            raise ValueError("a listed stream has ended; free its slot")
        self._compact()
        if unread := {slot: stream.unread for slot, stream in zip(slots, streams, strict=True) if stream.unread}:
            self.prefill(unread)
        going = [stream for stream in streams if stream.begun < stream.max_frames]
        wait = self._step.begin([stream.row() for stream in going]) if going else None
        for stream in going:
            stream.begun += 1

        def wait_for_frames() -> list[Frame | None]:
            if wait is None:
                return [None] * len(streams)
            made = wait()
            rows = zip(going, made.payload, made.ended, made.finite, strict=True)
            frames = {id(stream): self._frame(stream, *row) for stream, *row in rows}
            return [frames.get(id(stream)) for stream in streams]

        return wait_for_frames

    def step(self, slots: Sequence[int]) -> list[Frame]:
        """Make the next frame of every listed stream, in the order of `slots`: `begin`, and wait."""
        return [frame for frame in self.begin(slots)() if frame is not None]

    @without_gradients
    def park(self, slot: int) -> Any:
        """See `FrameSource`. The memory of the stream goes to the host."""
        stream = self.streams[slot]
        kept = self.model.kept(stream.place, stream.written)
        self.free(slot)
        return stream, kept

    @without_gradients
    def resume(self, slot: int, stream: Any) -> None:
        """See `FrameSource`."""
        stream, kept = stream
        place = self._free_place(slot)
        self.model.put(place, kept)
        stream.place = place
        self.streams[slot] = stream

    def free(self, slot: int) -> None:
        stream = self.streams.pop(slot)
        if not stream.checked:
            self.model.cache.wipe(stream.place, stream.position + 1)

    def reset(self) -> None:
        self.streams = {}
        self.prefixes.clear()
        self.model.cache.clear()

    def _free_place(self, slot: int) -> int:
        """The slot itself, unless another one's stream was moved to its memory."""
        taken = {stream.place for stream in self.streams.values()}
        return slot if slot not in taken else min(set(range(self.slots)) - taken)

    def _compact(self) -> None:
        """Move streams to the first slots, where fixed shapes then have fewer rows."""
        if not self.streams:
            return
        size = self._step.size(len(self.streams))
        high = [stream for stream in self.streams.values() if stream.place >= size]
        if high:
            free = sorted(set(range(size)) - {stream.place for stream in self.streams.values()})
            for stream, place in zip(high, free, strict=False):
                self.model.move(stream.place, place, stream.written)
                stream.place = place

    def _frame(self, stream: GenerationState, payload: npt.NDArray[Any], ended: bool, finite: bool) -> Frame | None:
        if stream.finish:  # a step before this one has ended it
            return None
        stream.seen += 1
        if not finite:
            stream.finish = "error"
            return Frame(None, "error")
        if ended and stream.last is None:
            stream.last = stream.frames + stream.after_end
        if stream.frames == stream.last:
            return Frame(None, stream.end(stream.ending))
        stream.frames += 1
        if stream.frames == stream.last:
            stream.end(stream.ending)
        elif stream.frames >= stream.max_frames:
            stream.end(stream.limit if stream.last is None else stream.ending)
        elif self._is_runaway(stream, payload):
            stream.finish = "runaway"
        return Frame(payload if stream.hears(payload) else None, stream.finish)

    def _is_runaway(self, stream: GenerationState, payload: npt.NDArray[Any]) -> bool:
        """Only of codes: numbers of other kinds never come again exactly."""
        if (
            stream.endless
            or self._runaway_frames is None
            or payload.dtype.kind not in "iu"
            or not stream.text.ended(stream.frames)
        ):
            return False
        return stream.repetition.add(int(payload[0])) >= self._runaway_frames


def load_generator(
    settings: TalkerSettings, talker: Talker[Any], frame_rate: float, prefix_bytes: int
) -> Generator[Any]:
    """The generator of a talker, with the memory of all its streams.

    Args:
        frame_rate: frames a second.
        prefix_bytes: the default of the setting on a CPU; 0: the talker keeps no prefixes, and the setting means
            nothing.
    """
    talker.stack.prepare(compute.wants_graphs(settings))
    free = runner = None
    if on_gpu(talker.stack.like):
        import torch

        free = torch.cuda.mem_get_info()[0]
    if compute.wants_graphs(settings):
        from voice_clone.layers.graphs import GraphRunner

        runner = GraphRunner.on(talker.stack.like.device)
    kept = prefix_bytes if free is None else int(PREFIX_SHARE * free)
    slots, spare = with_spare(_streams(settings, talker, free), free is not None)
    if settings.deterministic:  # where each slot costs a part of every step
        slots, spare = slots - spare, 0
    return Generator(
        talker,
        slots=slots,
        spare_slots=spare,
        max_length=settings.max_length,
        deterministic=settings.deterministic,
        runaway_frames=max(1, round(settings.runaway_seconds * frame_rate)),
        runner=runner,
        prefix_bytes=(settings.prefix_bytes or kept) if prefix_bytes else 0,
        prefill_chunk=compute.prefill_chunk(settings),
    )


def with_spare(streams: int, gpu: bool) -> tuple[int, int]:
    """The slots for so many streams, and how many of them are spare: see `TalkerSource`.

    On a CPU they are added, because memory that no stream has touched costs nothing. On a GPU they are among the slots
    that the memory holds.
    """
    return (streams, streams // GPU_SPARE) if gpu else (streams + CPU_SPARE, CPU_SPARE)


def streams_that_fit(free: int, stream: int) -> int:
    """How many streams a GPU generates at once by default.

    Args:
        free: bytes of memory that are free.
        stream: bytes that a stream takes.

    Raises:
        InvalidArgument: not even one fits.
    """
    fitting = int(SHARE * free) // stream
    if fitting < 1:
        raise InvalidArgument(
            f"a stream of max_length takes {stream / 1e9:.1f} GB, and {free / 1e9:.1f} GB of the GPU are free, "
            f"of which {SHARE:.0%} are for streams; set a smaller max_length, or free the GPU"
        )
    return min(fitting, MOST_STREAMS)


def stream_bytes(talker: Talker[Any], max_length: int) -> int:
    """Bytes of key-value memory of a stream of `max_length` positions."""
    config, like = talker.stack.config, talker.stack.like
    position = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * zeros((1,), like).nbytes
    taken: int = position * (max_length + 1) + talker.head.new_memory(1, max_length, like).nbytes
    return taken


def _streams(settings: TalkerSettings, talker: Talker[Any], free: int | None) -> int:
    """`free` are the bytes of a GPU that are free; None: a CPU computes."""
    if settings.max_streams or free is None:
        return settings.max_streams or CPU_STREAMS
    stream = stream_bytes(talker, settings.max_length)
    streams = streams_that_fit(free, stream)
    log.info("max_streams is %d: a stream takes %.2f GB, %.1f GB are free", streams, stream / 1e9, free / 1e9)
    return streams
