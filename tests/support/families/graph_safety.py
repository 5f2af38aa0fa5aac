"""Watches over code that a CUDA graph is to hold, on machines without a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from voice_clone.layers.graphs import Step

# What waits for the device, or makes a shape of its values.
FORBIDDEN = (
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "nonzero",
    "masked_select",
    "unique",
    "repeat_interleave.Tensor",
)


class NoSynchronisation(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
    """Raises at what a CUDA graph cannot hold; counts the operators that start kernels."""

    kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not any(f".{word}" in str(func) for word in FORBIDDEN), f"{func} in a step"
        if func.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put_):
            assert all(index is None or index.dtype == torch.int64 for index in args[1]), "a mask as an index in a step"
        assert func is not torch.ops.aten.lift_fresh.default, "numbers of Python made a tensor in a step"
        self.kernels += not func.is_view
        return func(*args, **(kwargs or {}))


class Recorder:
    """Stands for CUDA: runs a step twice when it is recorded, as a capture may, and again at each replay."""

    def __init__(self) -> None:
        self.replays: list[int] = []  # by number of recording

    def __call__(self, step: Step) -> Step:
        step()
        step()
        number = len(self.replays)
        self.replays.append(0)

        def replay() -> None:
            self.replays[number] += 1
            step()

        return replay
