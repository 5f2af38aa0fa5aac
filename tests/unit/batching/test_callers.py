"""Several callers on one engine: who gets slots, who stands still, and who is refused. The clock is the model's."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from tests.support.doubles.counted_frames import Collector
from tests.support.waiting import until
from voice_clone.batching import engine as engine_module
from voice_clone.batching.engine import Engine
from voice_clone.batching.source import Frame, PayloadForm
from voice_clone.errors import Overloaded
from voice_clone.turns import Caller

FRAME_SECONDS = 0.08
STEP = 0.002  # seconds, and again for each stream in it
SLOTS, SPARE = 4, 2


class Model:
    """A request is how many frames a stream has. Each step advances the clock; `at` is called after steps."""

    payload = PayloadForm(1)
    ahead = False
    one_by_one = False
    prompts_at_once = 1

    def __init__(self) -> None:
        self.slots = SLOTS + SPARE
        self.now = 100.0
        self.left: dict[int, int] = {}
        self.steps: list[tuple[int, ...]] = []
        self.at: dict[int, Callable[[], object]] = {}
        self.ready = threading.Event()
        self.parked = 0

    def start(self, slot: int, request: int) -> int:
        assert self.ready.wait(60)
        self.left[slot] = request
        return 1

    def prefill(self, counts: Mapping[int, int]) -> None:
        self.now += STEP

    def begin(self, slots: Sequence[int]) -> Callable[[], list[Frame]]:
        self.now += STEP * (1 + len(slots))
        self.steps.append(tuple(slots))
        if act := self.at.pop(len(self.steps), None):
            act()
        frames = []
        for slot in slots:
            self.left[slot] -= 1
            frames.append(Frame(np.zeros(1, np.int32), None if self.left[slot] else "length"))
        return lambda: frames

    def extend(self, slot: int, more: object) -> None:
        raise AssertionError

    def park(self, slot: int) -> int:
        self.parked += 1
        return self.left.pop(slot)

    def resume(self, slot: int, stream: int) -> None:
        assert slot not in self.left
        self.left[slot] = stream

    def free(self, slot: int) -> None:
        del self.left[slot]

    def reset(self) -> None:
        self.left = {}


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def engine(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine[int]]:
    monkeypatch.setattr(engine_module, "MAX_UNSENT", 1000)  # a step takes no time, so the outbox has none to deliver
    engine: Engine[int] = Engine(
        model,  # type: ignore[arg-type] # every text is whole
        (1, 2, 4, 8, 12),
        max_queue=8,
        frame_seconds=FRAME_SECONDS,
        clock=lambda: model.now,
        spare_slots=SPARE,
    )
    yield engine
    model.ready.set()
    engine.close()


def ask(engine: Engine[int], name: str, frames: int, caller: Caller) -> Collector:
    collector = Collector()
    engine.submit(name, frames, collector, caller=caller)
    return collector


def test_a_new_caller_starts_at_once_beside_a_full_engine(model: Model, engine: Engine[int]) -> None:
    mine: list[Collector] = []
    model.at[300] = lambda: mine.append(ask(engine, "mine", 30, Caller("me")))
    many = [ask(engine, f"many {n}", 200, Caller("many")) for n in range(12)]
    model.ready.set()
    assert all(each.wait().error is None for each in many)
    first = mine[0].wait().chunks[0].timing
    assert first.queue <= 1e3 * STEP * (1 + SLOTS), "a spare slot was free"
    assert first.first_chunk <= 1e3 * STEP * (2 * (1 + SLOTS) + 3)
    assert max(map(len, model.steps[:300])) == SLOTS, "spare slots are for a caller with few"
    assert max(each.chunks[-1].timing.gap for each in many) <= 1e3 * (12 * FRAME_SECONDS + 0.1), "none ran dry"


def test_the_last_spare_slot_is_for_a_caller_that_has_none(model: Model, engine: Engine[int]) -> None:
    mine: list[Collector] = []
    model.at[100] = lambda: [ask(engine, f"few {n}", 200, Caller("few")) for n in range(2)]
    model.at[110] = lambda: mine.append(ask(engine, "mine", 30, Caller("me")))
    many = [ask(engine, f"many {n}", 400, Caller("many")) for n in range(SLOTS)]
    model.ready.set()
    assert all(each.wait().error is None for each in many)
    assert mine[0].wait().chunks[0].timing.queue <= 1e3 * STEP * (1 + SLOTS)


def test_a_stream_far_ahead_gives_its_slot_to_a_caller_that_has_none(model: Model, engine: Engine[int]) -> None:
    """Its own listener notices nothing: it goes on as soon as a slot is free."""
    mine: list[Collector] = []
    many = [ask(engine, f"many {n}", 900, Caller("many")) for n in range(SLOTS)]
    model.at[20] = lambda: many.extend(ask(engine, f"few {n}", 900, Caller(f"few {n}")) for n in range(SPARE))
    model.at[300] = lambda: mine.append(ask(engine, "mine", 30, Caller("me")))
    model.ready.set()
    assert all(each.wait().error is None for each in many)
    assert mine[0].wait().chunks[0].timing.queue <= 1e3 * STEP * (2 + SLOTS + SPARE)
    assert model.parked == 1
    assert all(sum(len(chunk.payload) for chunk in each.chunks) == 900 for each in many)
    assert max(each.chunks[-1].timing.gap for each in many) < 1e3 * (3.0 + 12 * FRAME_SECONDS), "none ran dry"


@pytest.mark.parametrize("seed", range(4))
def test_more_callers_than_slots(model: Model, engine: Engine[int], seed: int) -> None:
    """Slots go to and fro, and each stream is whole."""
    chance = random.Random(seed)
    asked: dict[Collector, int] = {}

    def more(caller: str) -> None:
        frames = chance.randint(1, 600)
        with suppress(Overloaded):
            asked[ask(engine, f"{caller} {len(asked)}", frames, Caller(caller))] = frames

    asked |= {ask(engine, str(number), 600, Caller("many")): 600 for number in range(SLOTS)}
    for step in chance.sample(range(50, 600), 40):
        model.at[step] = partial(more, f"few {chance.randint(0, 9)}" if step % 3 else "many")
    model.ready.set()
    until(lambda: not model.at and all(each.ended.is_set() for each in list(asked)))
    whole = [(each, frames) for each, frames in asked.items() if not isinstance(each.error, Overloaded)]
    assert all(sum(len(chunk.payload) for chunk in each.chunks) == frames for each, frames in whole)
    assert model.parked and not engine.parked and not engine.turns.names()


def test_one_caller_alone_has_no_spare_slot(model: Model, engine: Engine[int]) -> None:
    many = [ask(engine, str(n), 50, Caller()) for n in range(SLOTS + 4)]
    model.ready.set()
    assert all(each.wait().error is None for each in many)
    assert max(map(len, model.steps)) == SLOTS


def test_streams_of_others_stand_still_until_a_first_chunk(model: Model, engine: Engine[int]) -> None:
    model.at[100] = partial(ask, engine, "mine", 9, Caller("me"))
    others = [ask(engine, f"other {n}", 120, Caller("other")) for n in range(2)]
    model.ready.set()
    assert all(each.wait().error is None for each in others)
    alone = [number for number, slots in enumerate(model.steps) if slots == (2,)]
    assert alone and alone[0] in (100, 101)


def test_a_full_queue_is_taken_from_the_one_who_fills_it(model: Model, engine: Engine[int]) -> None:
    many = [ask(engine, f"many {n}", 5, Caller("many")) for n in range(SLOTS + 8)]
    with pytest.raises(Overloaded):
        ask(engine, "too many", 5, Caller("many"))
    few = [ask(engine, f"few {n}", 5, Caller("few")) for n in range(2)]
    model.ready.set()
    assert all(each.wait().error is None for each in few)
    refused = [each for each in many if each.wait().error is not None]
    assert refused == many[-2:]
    assert all(isinstance(each.error, Overloaded) for each in refused)


def test_no_turn_is_left_when_all_have_ended(model: Model, engine: Engine[int]) -> None:
    model.ready.set()
    for turn in range(20):
        streams = [ask(engine, f"{turn} {n}", 3, Caller(str(n))) for n in range(5)]
        engine.cancel(f"{turn} 1")
        for each in streams:
            each.wait()
    assert not engine.turns.active
    assert not engine.turns.names()
