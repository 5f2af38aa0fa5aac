"""Threads that serve: engine and decoder have one each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

Work = Callable[[], None]


def start_thread(name: str, serve: Work, warm_up: Work | None = None) -> threading.Thread:
    """A running thread that has called `warm_up` and calls `serve`.

    A GPU's libraries keep handles and plans for each thread: what another one has warmed up is cold in this one.

    Raises: what `warm_up` raises; the thread has then ended.
    """
    warm: Future[None] = Future()

    def run() -> None:
        try:
            if warm_up is not None:
                warm_up()
        except BaseException as error:
            warm.set_exception(error)
            return
        warm.set_result(None)
        serve()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    warm.result()
    return thread
