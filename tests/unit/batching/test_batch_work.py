"""Batch work in the engine beside listeners, in steps, pieces of prompts and starts. The model has the clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.support.doubles.counted_frames import Collector
from voice_clone.batching import engine as engine_module
from voice_clone.batching.engine import Engine
from voice_clone.batching.expected import NOTICE, name_of
from voice_clone.batching.scheduler import HOLD, PATIENCE, may_read
from voice_clone.batching.source import Frame, PayloadForm
from voice_clone.batching.stream import Stream
from voice_clone.turns import AGED, Caller

FRAME_SECONDS = 0.08
STEP = 0.004  # seconds
SLOTS, SPARE = 4, 2
PIECES = 6  # of a prompt
JOBS, ME = Caller("jobs", "batch"), Caller("me")


@dataclass(frozen=True)
class Wish:
    name: str
    frames: int


@dataclass
class Model:
    """Notes what it does for which streams; `at` is called during the steps of these numbers."""

    ahead: bool = False
    one_by_one: bool = False
    payload = PayloadForm(1)
    slots = SLOTS + SPARE
    prompts_at_once = 2
    now: float = 100.0
    names: dict[int, str] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    parked: dict[str, int] = field(default_factory=dict)
    """All that gave their slots away, and how many frames they lacked."""
    log: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each entry of `log` was made."""
    steps: int = 0
    at: dict[int, Callable[[], object]] = field(default_factory=dict)
    ready: threading.Event = field(default_factory=threading.Event)

    def _note(self, what: str, slots: Sequence[int]) -> None:
        self.log.append((what, frozenset(self.names[slot] for slot in slots)))
        self.times.append(self.now)
        self.now += STEP

    def start(self, slot: int, request: Wish) -> int:
        assert self.ready.wait(60)
        self.names[slot], self.left[slot] = request.name, request.frames
        self._note("start", [slot])
        return PIECES

    def prefill(self, counts: Mapping[int, int]) -> None:
        self._note("read", list(counts))

    def begin(self, slots: Sequence[int]) -> Callable[[], list[Frame | None]]:
        moved = slots[:1] if self.one_by_one else slots
        self._note("step", moved)
        self.steps += 1
        if act := self.at.pop(self.steps, None):
            act()
        frames: list[Frame | None] = []
        for slot in slots:
            if slot not in moved:
                frames.append(Frame(None, None))
                continue
            self.left[slot] -= 1
            made = np.full(1, self.left[slot], np.int32)
            frames.append(Frame(made, "length" if self.left[slot] == 0 else None) if self.left[slot] >= 0 else None)
        return lambda: frames

    def free(self, slot: int) -> None:
        del self.left[slot]

    def park(self, slot: int) -> str:
        name = self.names[slot]
        self.parked[name] = self.left.pop(slot)
        return name

    def resume(self, slot: int, name: str) -> None:
        self.names[slot], self.left[slot] = name, self.parked[name]

    def reset(self) -> None:
        raise AssertionError("a failure of the engine")


class Bench:
    """An engine with its model."""

    def __init__(self, kind: str = "batched") -> None:
        self.kind = kind
        self.looked = 0  # times since the message
        self.news: list[str] = []
        self.ends_before: int | None = None  # the look after a message before which its time ends
        self.model = Model(kind == "ahead", kind == "one by one")
        self.engine: Engine[Wish] = Engine(
            self.model,  # type: ignore[arg-type] # every text is whole
            (1, 2, 4),
            max_queue=8,
            frame_seconds=0.0 if kind == "deterministic" else FRAME_SECONDS,
            prefill_chunk=1,
            clock=lambda: self.model.now,
            spare_slots=SPARE,
            news=self._news,
        )

    def _news(self) -> list[str]:
        news, self.news[:] = self.news[:], []
        if self.ends_before is not None and (news or self.looked):
            self.looked += 1
            if self.looked == self.ends_before + 1:
                self.model.now += NOTICE
        return news

    def ask(self, name: str, frames: int, caller: Caller, schedule: Sequence[int] | None = None) -> Collector:
        collector = Collector()
        self.engine.submit(name, Wish(name, frames), collector, caller=caller, schedule=schedule)
        return collector


@pytest.fixture
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(engine_module, "MAX_UNSENT", 10_000)  # a step takes no time, so the outbox has none to deliver
    monkeypatch.setattr(engine_module, "ARRIVAL", 0.0)  # the clock would stand still while the engine waits
    made = Bench(getattr(request, "param", "batched"))
    yield made
    made.model.ready.set()
    made.engine.close()


def cuts(stream: Collector) -> list[int]:
    assert stream.wait().error is None
    return [len(chunk.payload) for chunk in stream.chunks]


@pytest.mark.parametrize("first", [1, 9], ids=["a frame", "a long chunk"])
@pytest.mark.parametrize("bench", ["batched", "ahead", "deterministic", "one by one"], indirect=True)
def test_it_stands_still_until_a_first_chunk(bench: Bench, first: int) -> None:
    """No step, no piece of a prompt and no start is for it. Then it goes on, and its chunks are cut as those of an
    undisturbed job."""
    model = bench.model
    alone = bench.ask("undisturbed", 60, JOBS)
    model.ready.set()
    undisturbed = cuts(alone)
    mine: list[Collector] = []

    def listen() -> None:
        mine.append(bench.ask("mine", 40, ME, (first, 4)))
        bench.ask("late job", 10, JOBS)
        model.log.append(("asked", frozenset()))

    model.at[model.steps + 30] = listen
    jobs = [bench.ask(f"job {number}", 60, JOBS) for number in range(3)]
    assert all(cuts(job) == undisturbed for job in jobs)
    assert cuts(mine[0])[0] == first and mine[0].announced == 1
    bench.engine.close()
    since = model.log[model.log.index(("asked", frozenset())) + 1 :]
    if model.ahead:  # a step is begun before the frames of the one before are looked at
        first += 1
    steps = [number for number, each in enumerate(since) if each == ("step", {"mine"})][:first]
    waited, later = since[: steps[-1] + 1], since[steps[-1] + 1 :]
    assert waited == [("start", {"mine"}), *[("read", {"mine"})] * PIECES, *[("step", {"mine"})] * first]
    assert {name for what, names in later for name in names} >= {"job 0", "job 1", "job 2", "late job"}


@pytest.mark.parametrize(
    ("bench", "listeners", "frames", "pauses"),
    [("batched", 1, 3000, 1), ("one by one", 1, 3000, 5), ("batched", 12, 400, 2)],
    indirect=["bench"],
    ids=["a listener with one chunk", "a listener's turns", "listeners one after the other"],
)
def test_it_is_not_starved_by_listeners_who_always_wait(bench: Bench, listeners: int, frames: int, pauses: int) -> None:
    """It stands still for `HOLD` seconds at a time, and for each listener once. Where streams take turns, a listener's
    come first."""
    model = bench.model
    job, mine = bench.ask("job", 2000 if listeners > 1 else 200, JOBS), list[Collector]()

    def listen() -> None:
        mine.append(bench.ask(f"mine {len(mine)}", frames, ME, (3000,)))
        if len(mine) < listeners:
            model.at[model.steps + frames] = listen

    model.at[10] = listen
    model.ready.set()
    assert job.wait().error is None and len(mine) == listeners
    assert all(each.wait().error is None for each in mine)
    at = [when for when, (what, names) in zip(model.times, model.log, strict=True) if what == "step" and "job" in names]
    found = np.diff(at)
    assert (found > HOLD).sum() >= pauses and found.max() <= HOLD + 3 * STEP
    assert bench.kind != "batched" or (found > HOLD).sum() <= listeners


def test_it_stands_still_for_a_listener_who_is_expected(bench: Bench) -> None:
    """From the message on, and until the first audio of that stream, or the end of the time."""
    model, mine = bench.model, list[Collector]()

    def announce() -> None:
        bench.news.append(name_of("mine"))
        model.log.append(("announced", frozenset()))
        timer = threading.Timer(0.05, lambda: mine.append(bench.ask("mine", 5, ME)))
        timer.start()

    model.at[20] = announce
    job = bench.ask("job", 60, JOBS)
    model.ready.set()
    assert sum(cuts(job)) == 60 and mine[0].wait().error is None
    since = model.log[model.log.index(("announced", frozenset())) + 1 :]
    assert since[: PIECES + 2] == [("start", {"mine"}), *[("read", {"mine"})] * PIECES, ("step", {"mine"})]


def test_it_goes_on_when_an_expected_listener_does_not_come(bench: Bench) -> None:
    model = bench.model

    def announce() -> None:
        bench.news.append(name_of("mine"))
        timer = threading.Timer(0.05, lambda: setattr(model, "now", model.now + NOTICE))
        timer.start()

    model.at[20] = announce
    job = bench.ask("job", 60, JOBS)
    model.ready.set()
    assert sum(cuts(job)) == 60


@pytest.mark.parametrize("looks", range(1, 9))
def test_it_goes_on_when_the_time_ends_between_two_looks(bench: Bench, looks: int) -> None:
    """The time ends before one of the looks that follow the message."""
    bench.ends_before = looks
    bench.model.at[20] = lambda: bench.news.append(name_of("mine"))
    job = bench.ask("job", 60, JOBS)
    bench.model.ready.set()
    assert sum(cuts(job)) == 60


def test_it_stands_still_until_the_first_audio_has_arrived(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "ARRIVAL", 5.5 * STEP)
    model, mine = bench.model, list[Collector]()
    model.at[20] = lambda: mine.append(bench.ask("mine", 40, ME))
    job = bench.ask("job", 80, JOBS)
    model.ready.set()
    assert sum(cuts(job)) == 80 and mine[0].wait().error is None
    steps = [names for what, names in model.log if what == "step"]
    first = steps.index(frozenset({"mine"}))
    assert steps[first : first + 8] == [{"mine"}] * 7 + [{"job", "mine"}], "one made the chunk, five and a half follow"


@pytest.mark.parametrize("urgency", ["next", "batch"])
def test_listeners_who_have_audio_do_not_stop_it(bench: Bench, urgency: str) -> None:
    bench.model.at[10] = lambda: bench.ask("mine", 40, Caller("me", urgency))  # type: ignore[arg-type]
    job = bench.ask("job", 60, JOBS)
    bench.model.ready.set()
    assert job.wait().error is None
    assert all("job" in names for what, names in bench.model.log[:60] if what == "step")


def test_it_gives_its_slot_to_a_caller_that_has_none(bench: Bench) -> None:
    """No listener of its own has to have audio for long."""
    model, mine = bench.model, list[Collector]()
    jobs = [bench.ask(f"job {number}", 60, JOBS) for number in range(SLOTS)]
    model.at[2] = lambda: [bench.ask(f"other {number}", 400, Caller(f"other {number}")) for number in range(SPARE)]
    model.at[20] = lambda: mine.append(bench.ask("mine", 5, ME))
    model.ready.set()
    assert mine == [] or mine[0].wait().error is None
    assert all(sum(cuts(job)) == 60 for job in jobs)
    assert len(model.parked) == 1 and mine[0].wait().chunks[0].timing.queue <= 1e3 * 2 * STEP


@pytest.mark.parametrize("others", [0, SPARE], ids=["a spare slot", "no spare slot"])
def test_it_keeps_no_listener_of_its_caller_waiting(bench: Bench, others: int) -> None:
    """His stream has a spare slot, or that of a job."""
    model, mine = bench.model, list[Collector]()
    jobs = [bench.ask(f"job {number}", 60, JOBS) for number in range(SLOTS)]
    model.at[2] = lambda: [bench.ask(f"other {number}", 400, Caller(f"other {number}")) for number in range(others)]
    model.at[20] = lambda: mine.append(bench.ask("mine", 5, Caller(JOBS.name)))
    model.ready.set()
    assert all(sum(cuts(job)) == 60 for job in jobs)
    assert len(model.parked) == bool(others) and mine[0].wait().chunks[0].timing.queue <= 1e3 * 2 * STEP


def test_its_prompt_is_not_read_when_a_listener_would_notice() -> None:
    """Other new streams are patient for a short time, batch work as long as it may stand still."""

    def stream(urgency: str, heard: bool) -> Stream[None]:
        made: Stream[None] = Stream(
            urgency,
            None,
            Collector(),
            (1,),
            PayloadForm(1),
            0.08,
            clock=lambda: now[0],
            caller=Caller(urgency, urgency),  # type: ignore[arg-type]
        )
        made.started, made.unread = now[0], 0 if heard else 5
        if heard:
            made.add(Frame(np.zeros((4, 1), np.int32), None))
        return made

    now = [10.0]
    read = {}
    for urgency in ("interactive", "batch"):
        now[0] = 10.0
        new = stream(urgency, False)
        read[urgency] = []
        for seconds in (0.01, PATIENCE + 0.1, HOLD + 0.1):
            now[0] = 10.0 + seconds
            live = [new, stream("next", True)]
            read[urgency].append(may_read(live, {each: each.id for each in live}, now[0], 1.0, 1.0))
    assert read == {"interactive": [False, True, True], "batch": [False, False, True]}


def test_it_keeps_a_slot_that_it_gets_together_with_others(bench: Bench) -> None:
    """The source has not started it, so it could not go on elsewhere."""
    model, engine, asked = bench.model, bench.engine, list[Collector]()

    def wait_for_slots() -> None:
        model.now += AGED + 1
        for name in "abc":
            asked.append(bench.ask(name, 10, Caller(name)))
        engine.turns.charge(engine.streams["first"], -2 * AGED)  # so its caller is the next one

    live = [bench.ask("first", 60, Caller("jobs"))]
    live += [bench.ask(name, 60, Caller(name)) for name in ("second", "third", "fourth")]
    model.at[20] = lambda: asked.append(bench.ask("job", 10, JOBS))
    model.at[24] = lambda: engine.cancel("fourth")
    model.at[25] = wait_for_slots
    model.ready.set()
    assert all(stream.wait().error is None for stream in live[:3])
    assert all(stream.wait().error is None for stream in asked) and len(asked) == 4
    assert len(cuts(asked[0])) > 1
