"""Turns between callers: shares, order, returns, and who gives way where a line is full."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice_clone.errors import InvalidArgument
from voice_clone.turns import MAX_NAME, MOST_CALLERS, SHARED, Caller, Turns, Urgency, may_have_more

NAMES = "abcd"
COSTS = st.lists(st.floats(0.1, 3.0), min_size=30, max_size=120)


@dataclass
class Bench:
    """Turns with a clock, and items that are (caller's name, urgency, number)."""

    now: float = 0.0
    count: int = 0
    turns: Turns[tuple[str, Urgency, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.turns = Turns(lambda: self.now)

    def put(self, name: str, urgency: Urgency = "interactive") -> tuple[str, Urgency, int]:
        item = name, urgency, self.count
        self.count += 1
        self.turns.put(item, Caller(name, urgency))
        return item

    def serve(self, cost: float = 1.0) -> tuple[str, Urgency, int]:
        item = self.turns.take()
        assert item is not None
        self.turns.charge(item, cost)
        self.turns.leave(item)
        return item


@given(COSTS, st.integers(1, 4))
def test_callers_with_work_get_the_same_but_for_two_turns(costs: list[float], callers: int) -> None:
    bench, got = Bench(), Counter[str]()
    for name in NAMES[:callers]:
        for _ in costs:
            bench.put(name)
    for cost in costs:
        got[bench.serve(cost)[0]] += cost
        shares = [got[name] for name in NAMES[:callers]]
        assert max(shares) - min(shares) <= 2 * max(costs) + 1e-9


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(["put", "serve", "batch", "leave"])), max_size=200))
def test_a_caller_keeps_its_order_and_nothing_is_lost(steps: list[tuple[str, str]]) -> None:
    bench, waiting, running = Bench(), defaultdict[tuple[str, str], list[int]](list), list[tuple[str, Urgency, int]]()
    for number, (name, step) in enumerate(steps):
        if step in ("put", "batch"):
            item = bench.put(name, "batch" if step == "batch" else "interactive")
            waiting[name, item[1]].append(item[2])
        elif step == "serve" and (taken := bench.turns.take()) is not None:
            assert taken[2] == waiting[taken[0], taken[1]].pop(0)
            running.append(taken)
            bench.turns.charge(taken, 1.0 + number % 3)
        elif step == "leave" and running:
            bench.turns.leave(running.pop(number % len(running)))
        elif step == "leave" and waiting[name, "interactive"]:
            bench.turns.leave((name, "interactive", waiting[name, "interactive"].pop()))
        assert len(bench.turns) == sum(map(len, waiting.values()))
        names = {name for (name, _), items in waiting.items() if items} | {name for name, _, _ in running}
        assert bench.turns.active == len(names)
        assert set(bench.turns.names()) == set(running)


@given(COSTS)
def test_being_idle_saves_nothing_up(costs: list[float]) -> None:
    bench = Bench()
    for _ in costs:
        bench.put("busy")
    for cost in costs[:-1]:
        bench.serve(cost)
    for _ in range(3):
        bench.put("late")
    assert Counter(bench.serve(1.0)[0] for _ in range(2)) == {"busy": 1, "late": 1}


def test_a_caller_who_leaves_and_returns_keeps_what_it_owes() -> None:
    bench, got = Bench(), Counter[str]()
    for _ in range(400):
        bench.put("stays")
    for _ in range(200):
        if not any(name == "leaves" for name, *_ in bench.turns):
            bench.put("leaves")
        item = bench.turns.take()
        assert item is not None
        cost = 10.0 if item[0] == "leaves" else 1.0
        bench.turns.charge(item, cost)
        bench.turns.leave(item)
        got[item[0]] += cost
    assert abs(got["leaves"] - got["stays"]) <= 2 * 10


def test_batch_work_comes_after_the_rest_and_at_last_in_its_turn() -> None:
    bench = Bench()
    old = bench.put("a", "batch")
    bench.now = 15.0
    bench.put("b", "batch")
    assert bench.put("b") == bench.serve()
    bench.now = 31.0  # seconds: half a minute is enough
    bench.put("b")
    assert bench.serve() == old


def test_a_request_that_had_its_turn_before_goes_before_others_of_its_caller() -> None:
    bench = Bench()
    bench.put("a")
    back = "a", "interactive", -1
    bench.turns.put(back, Caller("a"), first=True)
    assert bench.serve() == back


def test_a_full_line_takes_from_the_one_who_has_most() -> None:
    bench = Bench()
    for _ in range(3):
        newest = bench.put("many")
    batch = bench.put("many", "batch")
    bench.put("few")
    assert bench.turns.push_out(Caller("few")) == batch
    bench.turns.leave(batch)
    assert bench.turns.push_out(Caller("few")) == newest
    assert bench.turns.push_out(Caller("many")) is None
    bench.turns.leave(newest)
    assert bench.turns.push_out(Caller("few")) is None, "it would have as many itself"
    assert bench.turns.push_out(Caller("new")) is not None


def test_very_many_callers_share_turns() -> None:
    bench = Bench()
    items = [bench.put(str(number)) for number in range(MOST_CALLERS + 500)]
    assert MOST_CALLERS < bench.turns.active <= MOST_CALLERS + SHARED
    assert {bench.serve() for _ in items} == set(items)
    bench.put("one more")
    assert bench.turns.active == 1, "the others are forgotten"


def test_callers_that_left_without_service_leave_their_place() -> None:
    bench = Bench()
    for number in range(MOST_CALLERS + 1):
        bench.turns.leave(bench.put(str(number)))
    bench.put("new")
    bench.turns.take()
    assert list(bench.turns.names().values()) == ["new"]


@pytest.mark.parametrize(
    ("name", "urgency"), [("x" * (MAX_NAME + 1), "batch"), (7, "batch"), ("x", "now"), ("x", None)]
)
def test_what_is_no_caller(name: object, urgency: object) -> None:
    with pytest.raises(InvalidArgument):
        Caller(name, urgency)  # type: ignore[arg-type]
    assert Caller("x" * MAX_NAME)


def test_what_is_held_refuses_no_caller_with_less_than_its_share() -> None:
    held = ["many"] * 8
    assert may_have_more(held[:7], "many", 8) and not may_have_more(held, "many", 8)
    for _ in range(4):
        assert may_have_more(held, "few", 8)
        held.append("few")
    assert not may_have_more(held, "few", 8)
    assert may_have_more(["a", "b"], "c", 2), "one at least"
