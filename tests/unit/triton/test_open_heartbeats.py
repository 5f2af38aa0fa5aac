"""The newest heartbeat of each stream stays open, and no other one does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.waiting import until
from voice_clone.triton.stages.heartbeats import Heartbeats


class Heartbeat:
    def __init__(self) -> None:
        self.ends = 0

    def end(self) -> None:
        self.ends += 1


@pytest.fixture
def heartbeats() -> Iterator[Heartbeats]:
    heartbeats = Heartbeats()
    yield heartbeats
    heartbeats.close()


def test_the_next_request_of_a_stream_ends_the_one_before(heartbeats: Heartbeats) -> None:
    first, second, other = (Heartbeat() for _ in range(3))
    heartbeats.hold("a", first)
    heartbeats.hold("b", other)
    heartbeats.hold("a", second)
    assert (first.ends, second.ends, other.ends) == (1, 0, 0)
    heartbeats.end("a")
    heartbeats.end("a")
    assert (first.ends, second.ends, other.ends) == (1, 1, 0)


def test_one_that_nothing_follows_ends_at_last() -> None:
    heartbeats, heartbeat = Heartbeats(patience=0.1), Heartbeat()
    heartbeats.hold("a", heartbeat)
    until(lambda: heartbeat.ends)
    heartbeats.close()
    assert heartbeat.ends == 1


def test_none_is_left_after_the_end() -> None:
    heartbeats, held = Heartbeats(), Heartbeat()
    heartbeats.hold("a", held)
    heartbeats.close()
    assert held.ends == 1
