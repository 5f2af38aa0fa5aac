"""Single flight: one run for all callers, time limits, priority, giving up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from tests.support.doubles.fakes import together
from tests.support.waiting import until
from voice_clone.errors import DeadlineExceeded, Internal, InvalidArgument, Overloaded
from voice_clone.speakers.flight import NO_OWNER, Flight, Flights, Superseded
from voice_clone.turn_pool import caller_now
from voice_clone.turns import Caller


@pytest.fixture
def flights() -> Iterator[Flights[int]]:
    made: Flights[int] = Flights(workers=2, timeout=30.0)
    yield made
    made.close()


class Gate:
    """Work that waits to be let through, and counts its runs."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.runs = 0

    def __call__(self, flight: Flight[int]) -> int:
        self.runs += 1
        assert self.opened.wait(30.0)
        return self.runs


def test_all_callers_share_one_run(flights: Flights[int]) -> None:  # B9
    gate = Gate()

    def ask(index: int) -> int:
        flight = flights.start("a", "key", gate)
        if index == 0:
            gate.opened.set()
        return flights.wait(flight, 30.0)

    results = together(50, ask)
    assert set(results) == set(range(1, gate.runs + 1)) and gate.runs < 50
    until(lambda: len(flights) == 0)


def test_an_error_reaches_every_caller_as_its_own_exception(flights: Flights[int]) -> None:
    opened = threading.Event()

    def fail(flight: Flight[int]) -> int:
        opened.wait(30.0)
        raise InvalidArgument("no speech in it")

    first, second = flights.start("a", "key", fail), flights.start("a", "key", fail)
    assert first is second
    opened.set()
    errors = []
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="no speech in it") as caught:
            flights.wait(first, 30.0)
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    until(lambda: len(flights) == 0)


def test_an_unexpected_exception_becomes_internal_without_its_text(
    flights: Flights[int], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(flight: Flight[int]) -> int:
        raise RuntimeError("/secret/path")

    with pytest.raises(Internal) as caught:
        flights.wait(flights.start("a", "key", fail), 30.0)
    assert "secret" not in str(caught.value) and "/secret/path" in caplog.text


def test_a_caller_that_stops_waiting_does_not_stop_the_flight(flights: Flights[int]) -> None:
    gate = Gate()
    flight = flights.start("a", "key", gate)
    with pytest.raises(DeadlineExceeded, match="not ready in time"):
        flights.wait(flight, 0.01)
    gate.opened.set()
    assert flights.wait(flight, 30.0) == 1


def test_a_flight_that_hangs_is_over_and_the_next_one_runs() -> None:  # B3
    flights: Flights[int] = Flights(workers=2, timeout=0.05)
    hung, prompt = Gate(), Gate()
    prompt.opened.set()
    first = flights.start("a", "key", hung)
    with pytest.raises(DeadlineExceeded):
        flights.wait(first, 30.0)
    assert first.over and not first.running and flights.of("a") == []
    flights.timeout = 30.0
    assert flights.wait(flights.start("a", "key", prompt), 30.0) == 1
    hung.opened.set()
    flights.close()


def test_abandoned_flights_wake_their_callers(flights: Flights[int]) -> None:
    gate = Gate()
    flight = flights.start("a", "key", gate)
    other = flights.start("b", "key", gate)
    until(lambda: flight.running and other.running)
    queued = flights.start("a", "queued", gate)
    flights.abandon("a")
    for each in (flight, queued):
        with pytest.raises(Superseded):
            flights.wait(each, 30.0)
    assert flight.over and not other.over and flights.of("a") == []
    gate.opened.set()
    assert flights.wait(other, 30.0) in (1, 2)
    until(lambda: len(flights) == 0)
    assert gate.runs == 2  # what was queued never ran


def test_a_flight_with_a_waiting_caller_goes_first() -> None:
    flights: Flights[str] = Flights(workers=1, timeout=30.0)
    order: list[str] = []
    opened = threading.Event()

    def work(name: str, gate: threading.Event | None = None) -> str:
        if gate is not None:
            gate.wait(30.0)
        order.append(name)
        return name

    flights.start("x", "first", lambda _: work("first", opened))
    background = [flights.start("x", n, lambda _, n=n: work(n), background=True) for n in ("b1", "b2", "b3")]  # type: ignore[misc]
    urgent = flights.start("x", "urgent", lambda _: work("urgent"))
    assert flights.start("x", "b3", lambda _: work("not run")) is background[2]  # now a caller waits for it
    opened.set()
    for flight in (*background, urgent):
        flights.wait(flight, 30.0)
    assert order == ["first", "urgent", "b3", "b1", "b2"]
    flights.close()


def test_callers_share_the_threads() -> None:
    flights: Flights[str] = Flights(workers=2, timeout=30.0)
    begun: list[str] = []
    opened = {name: threading.Event() for name in ("many 0", "many 1", "few 0", "few 1")}

    def work(name: str) -> str:
        begun.append(name)
        assert opened[name].wait(30.0)
        return name

    def ask(name: str) -> Flight[str]:
        context = copy_context()
        context.run(caller_now.set, Caller(name.split()[0]))
        return context.run(flights.start, "x", name, lambda _: work(name))

    flown = []
    for number, name in enumerate(opened, 1):
        flown.append(ask(name))
        until(lambda number=number: len(begun) == min(number, 2))  # type: ignore[misc]
    opened["many 0"].set()
    until(lambda: len(begun) == 3)
    assert begun[2] == "few 0", "the other one has its share"
    for name in ("many 1", "few 0", "few 1"):
        opened[name].set()
    assert [flights.wait(flight, 30.0) for flight in flown] == list(opened)
    flights.close()


def test_close_ends_all(flights: Flights[int]) -> None:
    gate = Gate()
    flight = flights.start("a", "key", gate)
    flights.close()
    with pytest.raises(Overloaded):
        flights.wait(flight, 30.0)
    with pytest.raises(Overloaded):
        flights.start("a", "key", gate)
    gate.opened.set()


def test_what_callers_ask_for_leaves_the_queue_with_the_last_of_them(flights: Flights[int]) -> None:
    busy, gate = Gate(), Gate()
    for number in range(2):
        flights.start("a", number, busy)
    until(lambda: busy.runs == 2)
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(flights.ask, "shared", gate, 30.0)
        until(lambda: len(flights) == 3)
        for key in ("shared", *range(100)):
            with pytest.raises(DeadlineExceeded, match="not ready in time"):
                flights.ask(key, gate, 0.001)
        assert len(flights) == 3, "work waits that no caller wants"
        flights.start(NO_OWNER, "ahead", gate, background=True)
        with pytest.raises(DeadlineExceeded):
            flights.ask("ahead", gate, 0.001)
        assert len(flights) == 4, "what was begun without a caller goes on without one"
        busy.opened.set()
        gate.opened.set()
        assert patient.result(30.0) in (1, 2)
    until(lambda: len(flights) == 0)
    assert gate.runs == 2


def test_what_callers_ask_for_goes_on_once_it_has_begun(flights: Flights[int]) -> None:
    gate, seconds = Gate(), 0.2
    while not gate.runs:  # a busy machine may not begin it in time
        with pytest.raises(DeadlineExceeded):
            flights.ask("key", gate, seconds)
        seconds *= 2
    assert len(flights) == 1 and gate.runs == 1
    gate.opened.set()
    until(lambda: len(flights) == 0)
