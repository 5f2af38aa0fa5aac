"""The newest heartbeat of each stream stays open, and no other one does."""

from __future__ import annotations

from tests.support.clock import Clock
from voice_clone.triton.stages.heartbeats import PATIENCE, Heartbeats


class Heartbeat:
    def __init__(self) -> None:
        self.ends = 0

    def end(self) -> None:
        self.ends += 1


def test_the_next_request_of_a_stream_ends_the_one_before() -> None:
    heartbeats, (first, second, other) = Heartbeats(), (Heartbeat() for _ in range(3))
    heartbeats.hold("a", first)
    heartbeats.hold("b", other)
    heartbeats.hold("a", second)
    assert (first.ends, second.ends, other.ends) == (1, 0, 0)
    heartbeats.end("a")
    heartbeats.end("a")
    assert (first.ends, second.ends, other.ends) == (1, 1, 0)


def test_one_that_nothing_follows_ends_at_last() -> None:
    clock = Clock()
    heartbeats, (old, new) = Heartbeats(clock), (Heartbeat() for _ in range(2))
    heartbeats.hold("a", old)
    clock.now += PATIENCE / 2
    heartbeats.hold("b", new)
    assert old.ends == 0
    clock.now += PATIENCE / 2 + 1
    heartbeats.hold("c", Heartbeat())
    assert (old.ends, new.ends) == (1, 0)


def test_none_is_left_after_the_end() -> None:
    heartbeats, (held, late) = Heartbeats(), (Heartbeat() for _ in range(2))
    heartbeats.hold("a", held)
    heartbeats.close()
    heartbeats.hold("b", late)
    assert held.ends == late.ends == 1
