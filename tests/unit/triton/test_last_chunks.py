"""Last chunks on their way to clients: a server that stops waits for those, and for no others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

import pytest

from tests.support.doubles.clock import Clock
from voice_clone.triton.stages.streams import ANSWER_PATIENCE, LastChunks


def test_nothing_is_waited_for_where_nothing_was_sent() -> None:
    assert LastChunks().wait()


def test_the_wait_ends_when_the_last_one_is_answered() -> None:
    chunks = LastChunks()
    chunks.sent("a")
    chunks.sent("b")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(chunks.wait)
        chunks.answered("a")
        with pytest.raises(NotYet):
            waiting.result(timeout=0.1)
        chunks.answered("b")
        assert waiting.result(timeout=10.0)


def test_an_answer_may_come_before_the_sender_is_back() -> None:
    chunks = LastChunks()
    chunks.sent("a")
    threading.Thread(target=chunks.answered, args=("a",)).start()
    assert chunks.wait()
    chunks.answered("a")
    assert chunks.wait()


def test_a_chunk_without_an_answer_is_not_waited_for_long() -> None:
    clock = Clock()
    chunks = LastChunks(clock)
    chunks.sent("a")
    clock.now += ANSWER_PATIENCE - 0.1
    assert not chunks.wait()


def test_a_chunk_without_an_answer_is_forgotten() -> None:
    clock = Clock()
    chunks = LastChunks(clock)
    for number in range(1000):
        clock.now += 1.0
        chunks.sent(str(number))
    assert len(chunks._sent) <= ANSWER_PATIENCE + 1
