"""Looks at a shared store end before its connection does."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.waiting import until
from voice_clone.errors import Overloaded
from voice_clone.speakers.postgres.freshness import Freshness


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


def test_nobody_looks_after_close() -> None:
    looks = []
    freshness = Freshness(lambda: looks.append(1), bound=60.0)
    freshness.ensure()
    freshness.close()
    before = len(looks)
    with pytest.raises(Overloaded, match="closed"):
        freshness.ensure()
    assert len(looks) == before == freshness.looks > 0
