"""Listeners who are expected."""

from __future__ import annotations

import pytest

from voice_clone.batching.expected import NOTICE, Expected, name_of


class Bench:
    def __init__(self) -> None:
        self.now, self.announced = 10.0, list[str]()
        self.expected = Expected(self._news, lambda: self.now)

    def announce(self, *streams: str) -> None:
        self.announced += map(name_of, streams)

    def _news(self) -> list[str]:
        news, self.announced = self.announced, []
        return news


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_stream_is_expected_until_it_comes(bench: Bench) -> None:
    expected = bench.expected
    assert expected.seconds() == 0.0 and not expected.come("mine")
    bench.announce("mine")
    assert expected.seconds() == pytest.approx(NOTICE)
    expected.add("other", 3 * NOTICE)
    assert expected.seconds() == pytest.approx(3 * NOTICE)
    assert expected.come("other") and expected.seconds() == pytest.approx(NOTICE)
    bench.announce("late")
    assert expected.come("late"), "the announcement is read first"
    assert expected.come("mine") and expected.seconds() == 0.0 and not expected.come("mine")


def test_it_is_expected_for_a_while(bench: Bench) -> None:
    bench.announce("mine")
    assert bench.expected.seconds() > 0.0
    bench.now += NOTICE
    assert bench.expected.seconds() == 0.0 and not bench.expected.come("mine")


def test_announcements_that_come_to_nothing_do_not_count_again(bench: Bench) -> None:
    """Until a stream comes, announced or not."""
    held = 0.0
    for number in range(50):
        bench.announce(f"refused {number}")
        held += 0.05 if bench.expected.seconds() else 0.0
        bench.now += 0.05
    assert 0.0 < held <= 2 * NOTICE
    assert not bench.expected.come("mine")
    bench.announce("next")
    assert bench.expected.seconds() > 0.0 and bench.expected.come("next")
