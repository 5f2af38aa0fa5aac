"""The best rates of this machine, and the turns of torch and native code on its cores.

torch's threads spin for a while after their last work, on cores that the next native code needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from voice_clone.native.thread_pool import leave_threads_to_native_code, thread_pool

SPINNING = 0.02  # seconds


def give_threads() -> None:
    """Begin torch's turn: it gets as many threads as native code."""
    torch.set_num_threads(thread_pool().threads)


def keep_threads() -> None:
    """Begin native code's turn, as in a server, after torch's threads have stopped spinning."""
    leave_threads_to_native_code()
    time.sleep(SPINNING)


def bandwidth(seconds: float = 1.0) -> float:
    """Bytes a second that all threads together read of a large array."""
    give_threads()
    array = torch.ones(1 << 27)
    return array.nbytes / _fastest(lambda: array.sum(), seconds)


def arithmetic(seconds: float = 1.0) -> float:
    """Multiplications a second of a large fp32 matrix product."""
    give_threads()
    size = 1536
    a, b = torch.rand(size, size), torch.rand(size, size)
    return size**3 / _fastest(lambda: a @ b, seconds)


def best(run: Callable[[], Any], runs: int) -> tuple[float, Any]:
    """Seconds of the fastest of some runs, and the result of the last."""
    times, result = [], None
    for _ in range(runs):
        began = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - began)
    return min(times), result


def _fastest(run: Callable[[], Any], seconds: float) -> float:
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best
