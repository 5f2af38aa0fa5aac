"""A pool on which callers take turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.waiting import WAIT, until
from voice_clone.turn_pool import TurnPool, caller_now
from voice_clone.turns import PLAIN, Caller

THREADS = 2


@pytest.fixture
def pool() -> Iterator[TurnPool]:
    pool = TurnPool(THREADS, "work")
    yield pool
    pool.shutdown()


class Work:
    """Work that waits for `go`; keeps who began, in order."""

    def __init__(self, pool: TurnPool) -> None:
        self._pool, self.go, self.begun, self.done = pool, threading.Event(), list[str](), list[str]()

    def ask(self, name: str, caller: Caller = PLAIN) -> None:
        def work() -> None:
            assert caller_now.get() == caller
            self.begun.append(name)
            assert self.go.wait(WAIT)
            self.done.append(name)

        self._pool.submit(caller, work)


def test_one_caller_has_the_usual_threads_and_keeps_its_order(pool: TurnPool) -> None:
    work = Work(pool)
    names = [str(number) for number in range(6)]
    for name in names:
        work.ask(name)
    until(lambda: len(work.begun) == THREADS)
    assert work.begun == names[:THREADS]
    work.go.set()
    until(lambda: len(work.done) == len(names))
    assert sorted(work.done) == names


def test_a_caller_without_a_thread_gets_one_at_once(pool: TurnPool) -> None:
    work = Work(pool)
    for number in range(6):
        work.ask(f"many {number}", Caller("many"))
    until(lambda: len(work.begun) == THREADS)
    work.ask("few 0", Caller("few"))
    work.ask("few 1", Caller("few"))
    until(lambda: len(work.begun) == THREADS + 1)
    assert work.begun[-1] == "few 0"
    work.go.set()
    until(lambda: len(work.done) == 8)


def test_work_that_comes_together_needs_a_thread_for_each(pool: TurnPool) -> None:
    """The thread that is idle takes one of the two; the other must not wait behind it."""
    work = Work(pool)
    work.go.set()
    work.ask("before")
    until(lambda: pool._idle == 1)
    work.go.clear()
    work.ask("one", Caller("ada"))
    work.ask("two", Caller("bob"))
    until(lambda: sorted(work.begun) == ["before", "one", "two"], WAIT / 2)
    work.go.set()


def test_the_end_of_the_pool_ends_threads_that_found_nothing_to_do() -> None:
    pool = TurnPool(1, "work")
    work, other = Work(pool), Work(pool)
    work.ask("a", Caller("ada"))
    for name in ("bob", "carol"):
        other.ask(name, Caller(name))
    until(lambda: len(work.begun) + len(other.begun) == 3)
    other.go.set()
    until(lambda: pool._idle == 2)
    work.ask("b", Caller("ada"))  # waits for ada's first; the idle threads must not take it
    ending = threading.Thread(target=pool.shutdown, daemon=True)
    ending.start()
    time.sleep(0.1)  # the idle threads have looked, and found nothing that they may take
    work.go.set()
    ending.join(WAIT / 4)
    assert not ending.is_alive()
    assert work.done == ["a", "b"]


def test_the_end_of_the_pool_does_what_waits() -> None:
    pool = TurnPool(1, "work")
    work = Work(pool)
    for number in range(5):
        work.ask(str(number), Caller(str(number % 2)))
    work.go.set()
    pool.shutdown()
    assert len(work.done) == 5
    with pytest.raises(RuntimeError):
        work.ask("late")


def test_work_that_raises_takes_no_thread_along(pool: TurnPool) -> None:
    def fail() -> None:
        raise ValueError

    for _ in range(3 * THREADS):
        pool.submit(PLAIN, fail)
    work = Work(pool)
    work.go.set()
    work.ask("after")
    until(lambda: work.done == ["after"])


def test_a_pool_without_more_threads_gives_callers_turns() -> None:
    freed: list[int] = []
    pool = TurnPool(1, "one", more=0, after=lambda: freed.append(1))
    work = Work(pool)
    for name in ("first", "second", "third"):
        work.ask(name, Caller("ada"))
    work.ask("other", Caller("bob"))
    until(lambda: work.begun == ["first"])
    work.go.set()
    until(lambda: len(work.done) == 4)
    assert work.done == ["first", "other", "second", "third"]
    pool.shutdown()
    assert len(freed) == 4


def test_a_result_comes_in_the_turn_of_the_caller(pool: TurnPool) -> None:
    token = caller_now.set(Caller("me"))
    assert pool.result(caller_now.get) == Caller("me")
    with pytest.raises(ZeroDivisionError):
        pool.result(lambda: 1 // 0)
    caller_now.reset(token)
