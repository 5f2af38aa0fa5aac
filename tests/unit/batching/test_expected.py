"""Listeners who are expected."""

from __future__ import annotations

import pytest

from voice_clone.batching.expected import NOTICE, Expected


def test_a_listener_is_expected_until_the_time_is_over() -> None:
    now, news = [10.0], list[str]()

    def take() -> list[str]:
        taken, news[:] = news[:], []
        return taken

    expected = Expected(take, lambda: now[0])
    assert expected.seconds() == 0.0 and not expected.drop("mine")
    news.append("mine")
    assert expected.seconds() == pytest.approx(NOTICE)
    expected.add("other", 3 * NOTICE)
    assert expected.drop("other") and expected.seconds() == pytest.approx(NOTICE)
    now[0] += NOTICE + 0.01
    assert expected.seconds() == 0.0 and not expected.drop("mine")
    news.append("late")
    assert expected.drop("late"), "the message is read first"
    assert expected.seconds() == 0.0
