"""Signals that end a tool."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from voice_clone_server.stopping import Stopped, stoppable

NUMBERS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@pytest.fixture(autouse=True)
def handlers_are_as_before() -> Iterator[None]:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@NUMBERS
def test_a_signal_stops(number: signal.Signals) -> None:
    with pytest.raises(Stopped), stoppable():
        os.kill(os.getpid(), number)
        pytest.fail("it went on")


@NUMBERS
def test_a_library_that_makes_an_error_of_it(number: signal.Signals) -> None:
    with pytest.raises(Stopped), stoppable():
        try:
            os.kill(os.getpid(), number)
        except BaseException:
            raise ValueError("could not determine the shape") from None


@NUMBERS
def test_a_library_that_loses_it(number: signal.Signals) -> None:
    with stoppable() as check:
        check()
        with contextlib.suppress(Stopped):
            os.kill(os.getpid(), number)
        with pytest.raises(Stopped):
            check()


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(ValueError, match="of its own"), stoppable():
        raise ValueError("of its own")


def test_a_job_that_ignores_ctrl_c_still_does() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stoppable() as check:
            os.kill(os.getpid(), signal.SIGINT)
            check()
    finally:
        signal.signal(signal.SIGINT, before)
