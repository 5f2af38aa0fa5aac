"""What a module computes from its weights or sizes alone, computed once on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from torch import Tensor

T = TypeVar("T")


class KeptOnGpu(Generic[T]):
    """A value that a module keeps on a GPU, because a CUDA graph would compute it again at each replay.

    The run before a capture makes it. A CPU computes it each time, so that a traced graph holds the computation. So
    does a GPU while the weights learn. Once a value is kept, the weights stay as they are.
    """

    def __init__(self) -> None:
        self._value: T | None = None

    def get(self, like: Tensor, compute: Callable[[], T]) -> T:
        """The value of `compute`. `like` is a tensor of the computation: it tells the device, and whether it learns."""
        if not like.is_cuda or like.requires_grad:
            return compute()
        if self._value is None:
            self._value = compute()
        return self._value
