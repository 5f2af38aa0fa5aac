"""The newest request of each stream stays open, and no other one does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.waiting import until
from voice_clone.triton.stages.streams import OpenRequests


class Request:
    def __init__(self, ended: Callable[[], None] = lambda: None) -> None:
        self.ends = 0
        self._ended = ended

    def end(self) -> None:
        self.ends += 1
        self._ended()


@pytest.fixture
def requests() -> Iterator[OpenRequests]:
    requests = OpenRequests()
    yield requests
    requests.close()


def test_the_next_request_of_a_stream_ends_the_one_before(requests: OpenRequests) -> None:
    first, second, other = (Request() for _ in range(3))
    requests.hold("a", first)
    requests.hold("b", other)
    requests.hold("a", second)
    assert (first.ends, second.ends, other.ends) == (1, 0, 0)
    requests.end("a")
    requests.end("a")
    assert (first.ends, second.ends, other.ends) == (1, 1, 0)


def test_one_that_nothing_follows_ends_at_last() -> None:
    requests, request = OpenRequests(patience=0.1), Request()
    requests.hold("a", request)
    until(lambda: request.ends)
    requests.close()
    assert request.ends == 1


def test_none_is_left_after_the_end() -> None:
    requests, held = OpenRequests(), Request()
    requests.hold("a", held)
    requests.close()
    assert held.ends == 1


class InFlight:
    """An ensemble's `max_inflight_requests`, of newer servers: a step's next request waits until another one ends."""

    def __init__(self, most: int) -> None:
        self._places = threading.Semaphore(most)

    def next(self) -> Request | None:
        """A request; None: it waits."""
        return Request(self._places.release) if self._places.acquire(blocking=False) else None


def test_each_live_stream_would_take_a_place_of_a_limit_of_requests_in_flight(requests: OpenRequests) -> None:
    """So our ensembles have none: all streams would stand still as soon as there are as many as places."""
    limit, streams = InFlight(3), ("a", "b", "c")
    for stream in streams:
        request = limit.next()
        assert request is not None
        requests.hold(stream, request)
    assert limit.next() is None, "no stream gets its next chunk through, though code2wav has nothing to do"
    requests.end("a")
    later = limit.next()
    assert later is not None
    requests.hold("b", later)
    assert limit.next() is not None


def test_one_that_is_done_late_ends_if_another_came_meanwhile(requests: OpenRequests) -> None:
    chunk, heartbeat, later = (Request() for _ in range(3))
    requests.hold("a", heartbeat)
    requests.hold_unless_newer("a", chunk)
    assert (chunk.ends, heartbeat.ends) == (1, 0)
    requests.end("a")
    requests.hold_unless_newer("a", later)
    assert (heartbeat.ends, later.ends) == (1, 0)
