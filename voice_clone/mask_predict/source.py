"""Streams of utterances whose frames are made together, in steps that unmask some of them: a `TalkerSource`.

A step of the engine is one step of unmasking, so a stream can be cancelled between any two. All frames of an utterance
come with its last step. On a GPU the steps of several streams run together, padded under a mask. On a CPU that would
save nothing. There the utterance that was begun first gets all steps until it is done: it is heard sooner, and the
others are not heard later than if all had taken turns.

Shapes: K codebooks, T frames, C hidden size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from voice_clone.autoregressive.generator import CPU_STREAMS, streams_that_fit, with_spare
from voice_clone.batching.source import Example, Frame
from voice_clone.errors import InvalidArgument
from voice_clone.lru_cache import CacheUsage, Origin
from voice_clone.mask_predict.predictor import MaskPredictor, MaskRequest
from voice_clone.mask_predict.unmasking import unmask
from voice_clone.settings import TalkerSettings

P = TypeVar("P")

LOGITS = 4  # tables of logits that a step has of one stream at once
MOST_ROWS = 16384  # positions that run together on a GPU, padding included
WARM_UP = ((0, 25), (64, 125), (250, 375))  # frames of the reference, and of the utterance


class _Stream(Generic[P]):
    """One stream: the utterance that is being unmasked, and what came of those before."""

    def __init__(self, predictor: MaskPredictor[P], request: MaskRequest[P], number: int) -> None:
        self.request = request
        self.lengths = [frames for _, frames in predictor.utterances(request.prompt)]
        self.first: Tensor | None = None  # codes of the first utterance
        self.index = -1
        self.left = request.max_frames
        self.finish: str | None = None
        self._predictor = predictor
        self.next(number)

    def next(self, number: int) -> None:
        """Begin the next utterance; `number` counts those of all streams."""
        self.index += 1
        self.number = number
        form = self._predictor.form
        size, device = (form.width, self.lengths[self.index]), self._predictor.like.device
        self.codes = torch.full(size, self._predictor.mask, device=device)
        self.steps = self.request.how.schedule(self.codes.numel())
        self.done = 0
        self.context: Tensor | None = None
        self.finite = torch.ones((), dtype=torch.bool, device=device)

    def sequences(self) -> Iterator[Tensor]:
        """The embeddings of the utterance behind its context, and, for guidance, without it."""
        if self.context is None:
            self.context = self._predictor.context(self.request.prompt, self.index, self.first)
        cells = self._predictor.embed(self.codes)
        yield torch.cat([self.context, cells])
        if self.request.how.guidance:
            yield cells

    def unmasked(self, logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Codes and `finite` after the next step, which had these logits; changes nothing."""
        step, cells = self.steps[self.done]
        codes = self.codes.clone()
        unguided = logits[1] if len(logits) > 1 else None
        finite = unmask(codes, logits[0], unguided, self.request.how, self.index, step, cells)
        return codes, self.finite & finite


class MaskPredictSource(Generic[P]):
    """The streams of one predictor; P is the type of its prompts. Not thread-safe: one engine thread calls it.

    Args:
        slots: the most streams at once.
        max_length: the most positions of an utterance: its context and its frames.
        together: sequences run together, as many as `MOST_ROWS` allows; False: each by itself, the utterances one
            after the other. Then no neighbour changes a bit of a stream.
        deterministic: sequences run by themselves, but all streams are stepped.
        spare_slots: of the slots, see `TalkerSource`.
    """

    ahead = False
    prompts_at_once = 1

    def __init__(
        self,
        predictor: MaskPredictor[P],
        slots: int,
        max_length: int,
        together: bool,
        deterministic: bool = False,
        spare_slots: int = 0,
    ) -> None:
        self.predictor = predictor
        self.slots, self.max_length = slots, max_length
        self.payload = predictor.form
        self.deterministic = deterministic or not together
        self.one_by_one = not together
        self.spare_slots = spare_slots
        self._streams: dict[int, _Stream[P]] = {}
        self._numbers = count()

    @property
    def memory_bytes(self) -> int:
        """Bytes of all streams, at most; they are taken while a stream needs them."""
        return self.slots * stream_bytes(self.predictor, self.max_length)

    def start(self, slot: int, request: MaskRequest[P]) -> int:
        """Give a free slot to a stream. Nothing is changed if this raises.

        Returns: 0: no prompt is read piece by piece.

        Raises:
            InvalidArgument: the prompt does not suit the checkpoint, or an utterance does not fit.
        """
        if slot in self._streams or not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} is taken or none of 0..{self.slots - 1}")
        self.predictor.check(request.prompt)
        for context, frames in self.predictor.utterances(request.prompt):
            if context + frames > self.max_length:
                raise InvalidArgument(
                    f"`text` and reference take {context} positions and the speech {frames} frames; together at most "
                    f"{self.max_length} fit; give a shorter text or a shorter reference"
                )
        self._streams[slot] = _Stream(self.predictor, request, next(self._numbers))
        return 0

    def prefill(self, counts: Mapping[int, int]) -> None:
        """Nothing is read piece by piece."""

    def extend(self, slot: int, more: Any) -> None:
        """No text is open: an utterance's length is known from all of it."""
        raise ValueError("a stream of utterances takes no more text")

    def ready(self, slot: int, count: int) -> bool:
        """Always: the text is there."""
        return True

    @torch.inference_mode()
    def begin(self, slots: Sequence[int]) -> Callable[[], list[Frame | None]]:
        """Begin the next step of unmasking of the listed streams; one by one: of the utterance that was begun first.

        If this raises, no stream has moved, and it may be tried again.

        Returns: what waits for the frames, in the order of `slots`. None: it was not this stream's turn.
        """
        streams = {slot: self._streams[slot] for slot in slots}
        if any(stream.finish for stream in streams.values()):
            raise ValueError("a listed stream has ended; free its slot")
        if self.one_by_one:
            slot = min(streams, key=lambda each: streams[each].number)
            streams = {slot: streams[slot]}
        parts = {slot: list(stream.sequences()) for slot, stream in streams.items()}
        frames = [stream.codes.shape[1] for slot, stream in streams.items() for _ in parts[slot]]
        logits = iter(self._logits([each for slot in streams for each in parts[slot]], frames))
        made = {slot: stream.unmasked([next(logits) for _ in parts[slot]]) for slot, stream in streams.items()}
        for slot, stream in streams.items():
            stream.codes, stream.finite = made[slot]
            stream.done += 1
        return lambda: [self._frame(self._streams[slot]) if slot in streams else None for slot in slots]

    def step(self, slots: Sequence[int]) -> list[Frame]:
        return [frame for frame in self.begin(slots)() if frame is not None]

    def park(self, slot: int) -> Any:
        return self._streams.pop(slot)

    def resume(self, slot: int, stream: Any) -> None:
        self._streams[slot] = stream

    def free(self, slot: int) -> None:
        del self._streams[slot]

    def reset(self) -> None:
        self._streams = {}

    def warm_up(self, example: Example[MaskRequest[P]], prefill_chunk: int, seconds: float) -> float:
        """Run utterances of some lengths. Leaves the source empty; see `TalkerSource`."""
        began = time.monotonic()
        for reference, frames in WARM_UP:
            if time.monotonic() - began > seconds:
                break
            self.start(0, example(reference, frames))
            self.step([0])
            self.reset()
        return time.monotonic() - began

    def restore(self, prompts: Iterable[tuple[Origin, P]], seconds: float) -> int:
        """For no voice: a context sees the utterance's cells, so nothing of it can be computed before them."""
        return 0

    def forget(self, voices: Collection[str]) -> CacheUsage:
        """Nothing is kept of a voice but its open streams, which go on."""
        return CacheUsage(0, 0, frozenset())

    def _logits(self, sequences: Sequence[Tensor], frames: Sequence[int]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for group in groups_of([len(each) for each in sequences], 0 if self.deterministic else MOST_ROWS):
            made = self.predictor.logits([sequences[each] for each in group], [frames[each] for each in group])
            found.update(zip(group, made, strict=True))
        return [found[each] for each in range(len(sequences))]

    def _frame(self, stream: _Stream[P]) -> Frame:
        if stream.done < len(stream.steps):
            return Frame(None, None)
        if not stream.finite:
            stream.finish = "error"
            return Frame(None, "error")
        if stream.first is None:
            stream.first = stream.codes
        run = stream.codes.T.cpu().numpy().astype(self.payload.dtype)
        whole = stream.index == len(stream.lengths) - 1
        if stream.left is not None:
            whole = whole and len(run) <= stream.left
            run = run[: stream.left]
            stream.left -= len(run)
        if whole or stream.left == 0:
            stream.finish = "stop" if whole else "length"
        else:
            stream.next(next(self._numbers))
        return Frame(run, stream.finish, flush=True)


def groups_of(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Places of sequences that run together: those of like lengths, which with padding have at most `most` positions.
    A longer sequence is a group of its own.
    """
    group: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        if group and (len(group) + 1) * lengths[group[0]] > most:
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def stream_bytes(predictor: MaskPredictor[Any], max_length: int) -> int:
    """Bytes of a stream of `max_length` positions, at most: its context, and logits with and without it."""
    logits = LOGITS * torch.float32.itemsize * predictor.form.width * (predictor.mask + 1)
    return max_length * (predictor.like.shape[-1] * predictor.like.element_size() + logits)


def load_source(settings: TalkerSettings, predictor: MaskPredictor[P]) -> MaskPredictSource[P]:
    """The streams of a predictor, as the settings ask for them."""
    together = predictor.like.device.type != "cpu"
    slots = settings.max_streams or CPU_STREAMS
    if together and not settings.max_streams:
        slots = streams_that_fit(torch.cuda.mem_get_info()[0], stream_bytes(predictor, settings.max_length))
    slots, spare = with_spare(slots, together)
    return MaskPredictSource(predictor, slots, settings.max_length, together, settings.deterministic, spare)
