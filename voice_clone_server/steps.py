"""Prints to stderr what a tool is doing while that takes long, so that it does not look hung."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

PERIOD = 10.0  # seconds


@contextlib.contextmanager
def step(doing: str | Callable[[], str]) -> Iterator[None]:
    """Print what the block is doing every `PERIOD` seconds; a shorter block prints nothing.

    Args:
        doing: in words; a function says how far it is.
    """
    done, began = threading.Event(), time.monotonic()

    def tell() -> None:
        with contextlib.suppress(OSError):  # the reader has left
            while not done.wait(PERIOD):
                what = doing if isinstance(doing, str) else doing()
                print(f"  {what}, {time.monotonic() - began:.0f} s so far ...", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
