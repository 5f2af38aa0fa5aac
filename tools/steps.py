"""What a tool is doing, on stderr, where it takes so long that somebody would take the tool for hung."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

FIRST, PERIOD = 2.0, 10.0  # seconds until the first line, and from one to the next


@contextlib.contextmanager
def step(doing: str | Callable[[], str]) -> Iterator[None]:
    """Say what the block does if it takes long, then every `PERIOD` seconds; nothing of a short one.

    Args:
        doing: in words; a function says how far it is.
    """
    done, began = threading.Event(), time.monotonic()

    def tell() -> None:
        if done.wait(FIRST):
            return
        spent = ""
        while True:
            print(f"  {doing if isinstance(doing, str) else doing()}{spent} ...", file=sys.stderr, flush=True)
            if done.wait(PERIOD):
                return
            spent = f", {time.monotonic() - began:.0f} s so far"

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
