"""Streams of utterances that are unmasked: company, turns, ends, errors, and the engine around them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.waiting import WAIT, until
from voice_clone.batching.engine import Engine
from voice_clone.batching.source import Frame, PayloadForm
from voice_clone.batching.stream import FrameChunk
from voice_clone.errors import Cancelled, DeadlineExceeded, InvalidArgument
from voice_clone.mask_predict.predictor import MaskRequest
from voice_clone.mask_predict.source import MaskPredictSource, groups_of
from voice_clone.mask_predict.unmasking import Unmasking

CODEBOOKS, CODES, SIZE = 2, 9, 16


@dataclass(frozen=True)
class Asked:
    """A prompt: rows of context, and frames of each utterance."""

    context: int
    frames: tuple[int, ...]


class SmallPredictor:
    """Mixes all rows of a sequence; a `MaskPredictor`."""

    form = PayloadForm(CODEBOOKS, np.uint16)
    mask = CODES
    like = torch.zeros(SIZE)

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(0)
        self._rows = torch.randn(CODEBOOKS, CODES + 1, SIZE, generator=random)
        self._heads = torch.randn(CODEBOOKS, CODES + 1, SIZE, generator=random)
        self.calls: list[int] = []  # sequences of each
        self.fails = False
        self.spoils = False
        self.pause = 0.0

    def check(self, prompt: Asked) -> None:
        if not prompt.frames:
            raise InvalidArgument("no frames")

    def utterances(self, prompt: Asked) -> list[tuple[int, int]]:
        firsts = [0, *[prompt.frames[0]] * (len(prompt.frames) - 1)]
        return [(prompt.context + first, frames) for first, frames in zip(firsts, prompt.frames, strict=True)]

    def context(self, prompt: Asked, index: int, first: Tensor | None) -> Tensor:
        rows = torch.full((prompt.context, SIZE), 0.1 * (index + 1))
        return rows if first is None else torch.cat([rows, self.embed(first)])

    def embed(self, codes: Tensor) -> Tensor:
        return sum((self._rows[book][codes[book]] for book in range(CODEBOOKS)), torch.zeros(1))

    def logits(self, sequences: Sequence[Tensor], frames: Sequence[int]) -> list[Tensor]:
        time.sleep(self.pause)
        if self.fails:
            raise RuntimeError("no memory")
        self.calls.append(len(sequences))
        made = []
        for rows, count in zip(sequences, frames, strict=True):
            places = torch.arange(len(rows))[:, None] * torch.linspace(0.1, 1, SIZE)
            hidden = torch.tanh(rows + rows.mean(0) + places.sin())[-count:]
            made.append(torch.einsum("tc,kvc->ktv", hidden, self._heads))
        if self.spoils:
            made[0][0, 0, 0] = torch.nan
        return made


def request(frames: Sequence[int] = (6,), seed: int = 0, **more: object) -> MaskRequest[Asked]:
    steps = more.pop("steps", 4)
    how = Unmasking(seed=seed, steps=steps, guidance=more.pop("guidance", 2.0))  # type: ignore[arg-type]
    return MaskRequest(Asked(3, tuple(frames)), how, **more)  # type: ignore[arg-type]


def make(together: bool = False, slots: int = 3, deterministic: bool = False) -> MaskPredictSource[Asked]:
    return MaskPredictSource(SmallPredictor(), slots, 64, together, deterministic)


def spoken(source: MaskPredictSource[Asked], *requests: MaskRequest[Asked]) -> list[list[np.ndarray]]:  # type: ignore[type-arg]
    """The runs of each, side by side."""
    found: dict[int, list[np.ndarray]] = {slot: [] for slot in range(len(requests))}  # type: ignore[type-arg]
    live = list(found)
    for slot, each in enumerate(requests):
        assert source.start(slot, each) == 0
    while live:
        for slot, frame in zip(list(live), source.begin(live)(), strict=True):
            if frame is not None and frame.payload is not None:
                found[slot].append(frame.payload)
            if frame is not None and frame.finish:
                source.free(slot)
                live.remove(slot)
    return list(found.values())


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_company_changes_nothing(together: bool, deterministic: bool) -> None:
    source = make(together, deterministic=deterministic)
    asked = [request((6,), 1), request((9, 4), 2, steps=7), request((3, 3, 2), 1, guidance=0.0)]
    alone = [spoken(source, each)[0] for each in asked]
    beside = spoken(source, *asked)
    assert [[len(run) for run in runs] for runs in beside] == [[6], [9, 4], [3, 3, 2]]
    assert all(np.array_equal(*pair) for a, b in zip(alone, beside, strict=True) for pair in zip(a, b, strict=True))
    assert all(run.dtype == np.uint16 and (run < CODES).all() for runs in beside for run in runs)


def test_seeds_and_utterances_draw_differently() -> None:
    source = make()
    one, two = spoken(source, request((20, 20), 1), request((20,), 2))
    assert not np.array_equal(one[0], two[0]) and not np.array_equal(one[0], one[1])


def test_sequences_run_together_where_that_is_wanted() -> None:
    for together, deterministic, expected in ((True, False, [4]), (True, True, [1] * 4), (False, False, [1] * 2)):
        source = make(together, deterministic=deterministic)
        source.start(0, request())
        source.start(1, request())
        source.step([0, 1])
        assert source.predictor.calls == expected  # type: ignore[attr-defined]
        assert source.deterministic == (expected != [4])


def test_one_by_one_the_utterance_that_was_begun_first_is_done_first() -> None:
    source = make()
    source.start(2, request((6, 6), steps=2))
    source.start(0, request((6,), steps=2))
    turns = []
    live = [0, 2]
    while live:
        frames = dict(zip(list(live), source.begin(live)(), strict=True))
        [(slot, frame)] = [(slot, frame) for slot, frame in frames.items() if frame is not None]
        turns.append((slot, frame.payload is not None))
        if frame.finish:
            live.remove(slot)
            source.free(slot)
    assert turns == [(2, False), (2, True), (0, False), (0, True), (2, False), (2, True)]


def test_groups_hold_so_many_positions_and_miss_none() -> None:
    assert list(groups_of([5, 50, 7, 6], 21)) == [[1], [2, 3, 0]]
    assert list(groups_of([5, 5], 0)) == [[0], [1]]


@pytest.mark.parametrize(
    ("most", "lengths", "finish"),
    [(20, [6, 5], "stop"), (11, [6, 5], "stop"), (8, [6, 2], "length"), (6, [6], "length")],
)
def test_a_stream_is_cut_behind_so_many_frames(most: int, lengths: list[int], finish: str) -> None:
    source = make()
    source.start(0, request((6, 5), max_frames=most))
    frames: list[Frame] = []
    while not frames or not frames[-1].finish:
        frames += source.step([0])
    assert [len(each.payload) for each in frames if each.payload is not None] == lengths
    assert frames[-1].finish == finish


def test_a_step_that_fails_may_be_tried_again() -> None:
    source = make()
    expected = spoken(source, request((6, 5), 3))[0]
    predictor = source.predictor
    assert isinstance(predictor, SmallPredictor)
    source.start(0, request((6, 5), 3))
    runs = []
    for number in range(100):
        predictor.fails = number % 2 == 0
        if predictor.fails:
            with pytest.raises(RuntimeError):
                source.begin([0])
            continue
        [frame] = source.step([0])
        runs += [] if frame.payload is None else [frame.payload]
        if frame.finish:
            break
    assert all(np.array_equal(*pair) for pair in zip(runs, expected, strict=True))


def test_numbers_that_are_not_finite_end_a_stream_with_an_error() -> None:
    source = make()
    source.predictor.spoils = True  # type: ignore[attr-defined]
    source.start(0, request(steps=1))
    [frame] = source.step([0])
    assert (frame.payload, frame.finish) == (None, "error")
    with pytest.raises(ValueError, match="has ended"):
        source.begin([0])


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    source = make()
    for wrong, what in ((request(()), "no frames"), (request((30, 32)), "together at most 64 fit")):
        with pytest.raises(InvalidArgument, match=what):
            source.start(0, wrong)
    source.start(0, request((30, 31)))
    with pytest.raises(ValueError, match="is taken"):
        source.start(0, request())
    with pytest.raises(ValueError, match="no more text"):
        source.extend(0, "more")
    source.reset()
    source.start(0, request())


def test_a_warm_up_leaves_the_source_empty() -> None:
    source = make()
    assert source.warm_up(lambda reference, frames: request((min(frames, 40),)), 32, 10.0) > 0
    assert len(source.predictor.calls) == 6  # type: ignore[attr-defined]
    source.start(0, request())
    assert source.restore(iter(()), 1.0) == 0 and source.forget(["Ada"]).entries == 0


class Listener:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.chunks: list[FrameChunk] = []
        self.error: BaseException | None = None
        self.done = threading.Event()

    def chunk(self, chunk: FrameChunk) -> None:
        self.chunks.append(chunk)
        if chunk.finish:
            self.done.set()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.done.set()

    def cancelled(self) -> bool:
        return False


def test_the_engine_sends_each_utterance_and_ends_streams_between_steps() -> None:
    source = make()
    predictor = source.predictor
    assert isinstance(predictor, SmallPredictor)
    engine = Engine(source, (4, 100), 8, clock=lambda: float(len(predictor.calls)))
    heard, left, late = Listener(), Listener(), Listener()
    try:
        engine.submit("heard", request((6, 5)), heard)
        assert heard.done.wait(WAIT)
        assert [len(each.payload) for each in heard.chunks] == [4, 2, 5]
        assert heard.chunks[-1].timing.prefill < heard.chunks[-1].timing.generate
        predictor.pause = 0.02
        engine.submit("left", request((30,), steps=1000), left)
        before = len(predictor.calls)
        engine.submit("late", request((30,), steps=1000), late, deadline=before + 20.0)
        until(lambda: len(predictor.calls) > before)
        assert engine.cancel("left")
        assert left.done.wait(WAIT) and late.done.wait(WAIT)
        assert isinstance(left.error, Cancelled) and isinstance(late.error, DeadlineExceeded)
        assert len(predictor.calls) < 200
    finally:
        engine.close()
