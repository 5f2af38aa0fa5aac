"""Work on fixed tensors, recorded once as a CUDA graph and replayed; and the two ways between host and device.

A step that is to be replayed reads and writes tensors that exist before it, at addresses that never change; it looks at
no value, so that neither its shapes nor its course depend on any; and it may run twice. Where there is no GPU the very
same step runs eagerly.

The rules of capture: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import numpy.typing as npt
import torch

Step = Callable[[], None]
Capture = Callable[[Step], Step]
"""Takes a step and returns what does the same again, faster."""

log = logging.getLogger(__name__)


class GraphRunner:
    """Runs steps by key; a key stands for one step and one set of shapes.

    Attributes:
        recorded: how many keys are replayed.
        failed: how many keys could not be recorded and run eagerly.
    """

    def __init__(self, capture: Capture | None = None) -> None:
        """Without `capture` all steps run as they are."""
        self._capture = capture
        self._replays: dict[Hashable, Step] = {}
        self.recorded = 0
        self.failed = 0

    @classmethod
    def on(cls, device: torch.device) -> GraphRunner:
        """CUDA graphs on a GPU, eager steps elsewhere."""
        return cls(CudaCapture() if device.type == "cuda" else None)

    def run(self, key: Hashable, step: Step) -> None:
        """Do what the step of `key` does; at the first time it is recorded."""
        self.prepare(key, step)
        self._replays[key]()

    def prepare(self, key: Hashable, step: Step) -> None:
        """Record a step, unless its key is known. Recording may run it."""
        if key in self._replays:
            return
        self._replays[key] = step
        if self._capture is None:
            return
        try:
            self._replays[key] = self._capture(step)
            self.recorded += 1
        except Exception as error:
            self.failed += 1
            log.error("%s could not be recorded as a CUDA graph; it runs without, slower", key, exc_info=error)


class CudaCapture:
    """Records steps as CUDA graphs on the current device. All that is CUDA's alone stands here and in the two below.

    Its graphs share one pool of memory. They may, in any order of replay: one thread replays them on one stream, and
    what outlives a replay lies in tensors of the caller, none in the pool.
    """

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        # Also when the capture fails: torch.cuda.graph then leaves its stream the current one.
        with torch.cuda.stream(self._stream):
            self._stream.wait_stream(before)
            step()  # libraries make their handles and workspaces, kernels are loaded: neither may happen in a capture
            self._stream.synchronize()
            # thread_local: what other threads ask of CUDA meanwhile is no concern of this capture.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                step()
        return graph.replay


class Upload:
    """Rows that the host writes and a step reads, at a fixed address.

    Attributes:
        device: the rows as the step sees them.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.device = torch.zeros(*shape, dtype=dtype, device=device)
        self._host = torch.zeros(*shape, dtype=dtype, pin_memory=device.type == "cuda")

    def send(self, rows: npt.NDArray[np.generic]) -> None:
        """Write the first rows; returns before they are there. What was sent before must have been waited for."""
        part = slice(0, len(rows))
        self._host[part].copy_(torch.from_numpy(rows))
        self.device[part].copy_(self._host[part], non_blocking=True)


class Download:
    """Rows that a step writes and the host reads.

    Attributes:
        device: the rows as the step sees them.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.device = torch.zeros(*shape, dtype=dtype, device=device)
        self._host = torch.zeros(*shape, dtype=dtype, pin_memory=device.type == "cuda")
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def fetch(self, count: int) -> npt.NDArray[np.generic]:
        """The first rows, a copy, once all work begun before is done: the one wait of a step."""
        self._host[:count].copy_(self.device[:count], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
            self._copied.synchronize()
        return self._host[:count].numpy().copy()


def powers_up_to(most: int, least: int = 1) -> tuple[int, ...]:
    """`least`, its doubles below `most`, and `most`: the sizes that steps are recorded for."""
    sizes = []
    while least < most:
        sizes.append(least)
        least *= 2
    return (*sizes, most)


def round_up(size: int, sizes: Sequence[int]) -> int:
    """The least of ascending `sizes` that holds `size`."""
    return next(each for each in sizes if each >= size)
