"""The outbox asks the sinks of many streams whether their clients are there: a few at a time, each in its turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.doubles.clock import Clock
from tests.support.waiting import until
from voice_clone.batching.outbox import POLL_SECONDS, POLL_STREAMS, Levels, Outbox
from voice_clone.batching.source import PayloadForm
from voice_clone.batching.statistics import Statistics
from voice_clone.batching.stream import FrameChunk, Stream, Timing
from voice_clone.errors import Cancelled, Overloaded

STREAMS = 64
ROUND = STREAMS // POLL_STREAMS  # polls that ask them all


class Sink:
    """Adds its number to `asked`, a list that all share, when it is asked."""

    def __init__(self, number: int, asked: list[int]) -> None:
        self._number = number
        self._asked = asked
        self.gone = False
        self.failed = False

    def chunk(self, chunk: FrameChunk) -> None:
        raise AssertionError("no chunk was made")

    def fail(self, error: BaseException) -> None:
        self.failed = True

    def cancelled(self) -> bool:
        self._asked.append(self._number)
        return self.gone


class Watched:
    """An outbox with `STREAMS` open streams, whose polls come when a test says so.

    Attributes:
        asked: the numbers of the streams, in the order of the questions.
        abandoned: the numbers of those whose clients have left.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.asked: list[int] = []
        self.abandoned: list[str] = []
        self.outbox = Outbox(lambda _: None, self._abandon, lambda: Levels(0, 0, 0), None, self.clock)
        self.streams = [self.open(number) for number in range(STREAMS)]
        until(lambda: len(self.outbox._open) == STREAMS, 10.0)

    def open(self, number: int) -> Stream[int]:
        stream = Stream(str(number), number, Sink(number, self.asked), (1,), PayloadForm(2))
        self.outbox.open(stream)
        return stream

    def poll(self, times: int, asks: int = POLL_STREAMS) -> list[int]:
        """The streams that so many polls ask; each asks `asks` of them."""
        before = len(self.asked)
        for number in range(1, times + 1):
            self.clock.now += 2 * POLL_SECONDS
            until(lambda number=number: len(self.asked) >= before + number * asks, 10.0)
            assert len(self.asked) == before + number * asks
        return self.asked[before:]

    def _abandon(self, stream: Stream[Any]) -> None:
        stream.stopped = Cancelled("its client has left")
        self.abandoned.append(stream.id)


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.outbox.close()
    watched.outbox.join()


def test_each_is_asked_in_its_turn(watched: Watched) -> None:
    """All within 0.32 s, and then again."""
    assert watched.poll(ROUND) == list(range(STREAMS))
    assert pytest.approx(0.32) == ROUND * POLL_SECONDS
    assert watched.poll(2 * ROUND) == 2 * list(range(STREAMS))


def test_no_time_no_question(watched: Watched) -> None:
    """Whatever the outbox has to deliver meanwhile."""
    watched.poll(1)
    for stream in watched.streams[40:]:
        watched.outbox.put(stream, Cancelled("ended"))
    until(lambda: watched.streams[-1].sink.failed, 10.0)
    assert len(watched.asked) == POLL_STREAMS


def test_one_whose_client_has_left_is_found_within_a_round(watched: Watched) -> None:
    watched.poll(1)
    watched.streams[2].sink.gone = True  # it was just asked
    watched.poll(ROUND - 1)
    assert watched.abandoned == []
    watched.poll(1)
    assert watched.abandoned == ["2"]
    watched.poll(ROUND - 1)
    assert watched.poll(1, POLL_STREAMS - 1) == [0, 1, 3]  # it is not asked again, and ends soon
    watched.outbox.put(watched.streams[2], Cancelled("ended"))
    until(lambda: watched.streams[2].sink.failed, 10.0)
    watched.poll(ROUND - 1)
    assert watched.poll(1) == [0, 1, 3, 4]


def test_a_new_one_is_asked_last(watched: Watched) -> None:
    watched.poll(2)
    new = watched.open(STREAMS)
    until(lambda: new in watched.outbox._open, 10.0)
    assert watched.poll(ROUND) == [*range(2 * POLL_STREAMS, STREAMS), *range(2 * POLL_STREAMS)]
    assert watched.poll(1)[0] == STREAMS


class Counts(Statistics):
    """Only the reasons for which streams end."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def ended(self, reason: str, frames: int, timing: Timing) -> None:
        self.reasons.append(reason)

    def levels(self, live: int, waiting: int, starved: int) -> None:
        pass


def test_each_stream_is_counted_once() -> None:
    """Also one whose sink has failed before the server stops; and one that was refused."""
    counts = Counts()
    outbox = Outbox(lambda _: None, lambda _: None, lambda: Levels(0, 0, 0), counts, Clock())
    failed, refused = (Stream(name, 0, Sink(0, []), (1,), PayloadForm(2)) for name in ("failed", "refused"))
    outbox.open(failed)
    outbox.put(failed, failed.flush())
    outbox.put(failed, Overloaded("the server is shutting down"))
    outbox.refused(refused, Overloaded("full"))
    outbox.close()
    outbox.join()
    assert counts.reasons == ["internal", "overloaded"]
