"""A thread that warms up before it serves."""

from __future__ import annotations

import threading

import pytest

from voice_clone.batching.engine import start_thread


def test_it_warms_up_itself_and_first() -> None:
    done: list[tuple[str, threading.Thread]] = []
    thread = start_thread(
        "server",
        lambda: done.append(("served", threading.current_thread())),
        lambda: done.append(("warm", threading.current_thread())),
    )
    assert done[0] == ("warm", thread) and thread.name == "server"
    thread.join(10.0)
    assert done == [("warm", thread), ("served", thread)]


def test_one_that_cannot_warm_up_does_not_serve() -> None:
    served: list[bool] = []

    def fail() -> None:
        raise MemoryError("no room for the graphs")

    before = threading.active_count()
    with pytest.raises(MemoryError, match="no room"):
        start_thread("server", lambda: served.append(True), fail)
    for thread in threading.enumerate():
        if thread.name == "server":
            thread.join(10.0)
    assert not served and threading.active_count() <= before
