"""Looks at a shared store end before its connection does."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.waiting import until
from voice_clone.errors import Overloaded
from voice_clone.speakers.postgres.history import Freshness


def test_close_waits_for_the_look_of_another_thread() -> None:
    looking, go_on = threading.Event(), threading.Event()

    def look() -> None:
        looking.set()
        assert go_on.wait(30)

    freshness = Freshness(look, bound=60.0)
    with ThreadPoolExecutor(2) as pool:
        request = pool.submit(freshness.ensure)
        assert looking.wait(30)
        closing = pool.submit(freshness.close)
        until(freshness._closing.is_set)
        assert not closing.done()
        go_on.set()
        request.result(30)
        closing.result(30)


def test_no_one_looks_after_close() -> None:
    looks = []
    freshness = Freshness(lambda: looks.append(1), bound=60.0)
    freshness.ensure()
    freshness.close()
    before = len(looks)
    with pytest.raises(Overloaded, match="closed"):
        freshness.ensure()
    assert len(looks) == before == freshness.looks > 0


def test_who_waited_for_a_look_that_failed_does_not_wait_for_another(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it fails with: what a damaged database makes of a look may be anything."""
    looking, fail, lookers = threading.Event(), threading.Event(), []

    def look() -> None:
        lookers.append(threading.current_thread().name)
        if lookers[0] == lookers[-1]:
            looking.set()
            assert fail.wait(30)
        raise IndexError("a database without a counter")

    freshness = Freshness(look, bound=60.0)
    with ThreadPoolExecutor(9, thread_name_prefix="request") as pool:
        first = pool.submit(freshness.ensure)
        assert looking.wait(30)
        waiting = [pool.submit(freshness.ensure) for _ in range(8)]
        until(lambda: len(freshness._turn._waiters) >= 8)  # type: ignore[attr-defined]
        fail.set()
        for each in (first, *waiting):
            each.result(30)
    freshness.close()
    assert len([name for name in lookers if name.startswith("request")]) <= 1
    assert freshness.away and freshness.failures >= 1
    assert "a database without a counter" in caplog.text
