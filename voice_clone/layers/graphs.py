"""CUDA graphs of steps, copies between host and device, and values that a GPU caches.

A graph replays a step. So the step reads and writes tensors that exist before it, at addresses that never change. Its
shapes and its control flow do not depend on values of tensors. It may run twice. Without a GPU the same step runs
eagerly.

The rules of capture: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from voice_clone.errors import Unsupported
from voice_clone.gpu import is_out_of_memory

log = logging.getLogger(__name__)

Step = Callable[[], None]
Capture = Callable[[Step], Step]
"""Takes a step and returns a function that does the same, faster."""


class GraphRunner:
    """Runs steps by key. A key identifies one step with one set of shapes.

    Attributes:
        replays: the recorded step of each key.
        recorded: the number of keys that are replayed.
    """

    def __init__(self, capture: Capture | None = None) -> None:
        """Without `capture` all steps run eagerly."""
        self._capture = capture
        self.replays: dict[Hashable, Step] = {}
        self.recorded = 0

    @classmethod
    def on(cls, device: torch.device) -> GraphRunner:
        """CUDA graphs on a GPU, eager steps elsewhere."""
        return cls(CudaCapture() if device.type == "cuda" else None)

    def run(self, key: Hashable, step: Step) -> None:
        """Run the step of `key`; the first call records it."""
        self.prepare(key, step)
        self.replays[key]()

    def prepare(self, key: Hashable, step: Step) -> None:
        """Record a step, unless its key is known. Recording may run the step.

        Raises:
            Unsupported: it cannot be recorded. Without its graph a step takes many times as long.
        """
        if key in self.replays:
            return
        if self._capture is None:
            self.replays[key] = step
            return
        try:
            self.replays[key] = self._capture(step)
        except Exception as error:
            log.error("%s could not be recorded as a CUDA graph", key, exc_info=error)
            raise Unsupported(
                "this GPU or its driver does not record CUDA graphs of this model; the server's log says why. "
                "With cuda_graphs set to false it runs without, many times slower"
            ) from None
        self.recorded += 1


class CudaCapture:
    """Records steps as CUDA graphs on the current device.

    The graphs share one memory pool. This is safe in any order of replay, because one thread replays them on one
    stream, and all results lie in tensors of the caller, not in the pool.
    """

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        # The context restores the stream also if the capture fails; torch.cuda.graph alone then leaves its own stream.
        with torch.cuda.stream(self._stream):
            self._stream.wait_stream(before)
            step()  # libraries allocate handles and workspaces and load kernels, which a capture does not allow
            self._stream.synchronize()
            # thread_local: CUDA calls of other threads do not break this capture.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                step()
        return graph.replay


def to_device(values: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Move values to a device and convert them to a dtype. The host does not wait for the copy to a GPU."""
    values = values.to(dtype=dtype or values.dtype)  # on the host: it would wait for a copy that also converts
    if device.type != "cuda" or values.is_cuda:
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def table_rows(table: Tensor, ids: npt.NDArray[np.integer[Any]], like: Tensor) -> Tensor:
    """Take rows [N, C] of a table [V, C] by their ids [N], of any integer type. The result is like `like` in dtype and
    device.

    The table may be of another dtype, on another device, or still in the checkpoint's file, because only these rows
    move.
    """
    places = to_device(torch.from_numpy(ids.astype(np.int64)), table.device)
    return to_device(F.embedding(places, table), like.device, like.dtype)


class Upload:
    """A buffer at a fixed address, into which the host writes rows that a step reads.

    Attributes:
        device: the rows on the device.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.device = torch.zeros(*shape, dtype=dtype, device=device)
        self._host = torch.zeros(*shape, dtype=dtype, pin_memory=device.type == "cuda")
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def send(self, rows: npt.NDArray[np.generic]) -> None:
        """Start to copy `rows` to the first rows of `device`, once the copy of the call before has ended."""
        part = slice(0, len(rows))
        if self._copied is not None:
            self._copied.synchronize()
        self._host[part].copy_(torch.from_numpy(rows))
        self.device[part].copy_(self._host[part], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class Download:
    """A buffer into which a step writes rows that the host reads. Two copies may be under way; a third one first saves
    the oldest.

    Attributes:
        device: the rows on the device.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.device = torch.zeros(*shape, dtype=dtype, device=device)
        on_gpu = device.type == "cuda"
        self._hosts = [torch.zeros(*shape, dtype=dtype, pin_memory=on_gpu) for _ in range(2)]
        self._copied = [torch.cuda.Event() if on_gpu else None for _ in range(2)]  # type: ignore[no-untyped-call]
        self._newest: list[_Copy | None] = [None, None]  # in each of them
        self._turn = 0

    def start(self, count: int) -> Callable[[], npt.NDArray[np.generic]]:
        """Start to copy the first rows, behind all work that was started before.

        Returns: a function that waits for them and returns them; it may be called at any time.
        """
        self._turn = 1 - self._turn
        if (earlier := self._newest[self._turn]) is not None:
            earlier()
        host, copied = self._hosts[self._turn][:count], self._copied[self._turn]
        host.copy_(self.device[:count], non_blocking=True)
        if copied is not None:
            copied.record()
        copy = self._newest[self._turn] = _Copy(host, copied)
        return copy


class _Copy:
    """Wait for rows on their way to the host, and keep them, because the next copy reuses their memory."""

    def __init__(self, host: Tensor, copied: torch.cuda.Event | None) -> None:
        self._host = host
        self._copied = copied
        self._rows: npt.NDArray[np.generic] | None = None

    def __call__(self) -> npt.NDArray[np.generic]:
        if self._rows is None:
            if self._copied is not None:
                self._copied.synchronize()
            self._rows = self._host.numpy().copy()
        return self._rows


def powers_up_to(most: int, least: int = 1) -> tuple[int, ...]:
    """Return the sizes for which steps are recorded: `least` times powers of two below `most`, and `most`."""
    sizes = []
    while least < most:
        sizes.append(least)
        least *= 2
    return (*sizes, most)


def halves_up_to(most: int, least: int) -> tuple[int, ...]:
    """Return the sizes of `powers_up_to`, and those halfway between two powers."""
    powers = powers_up_to(most, least)
    between = (size + size // 2 for size in powers[:-1])
    return tuple(sorted({*powers, *(size for size in between if size < most)}))


def round_up(size: int, sizes: Sequence[int]) -> int:
    """Return the smallest of ascending `sizes` that is not below `size`."""
    return next(each for each in sizes if each >= size)


def record_batches(batches: Sequence[int], record: Callable[[int], None], work: str) -> tuple[int, ...]:
    """Record the steps of batches of these sizes. The largest comes first, so that the others fit its memory.

    Args:
        batches: ascending.
        record: records all steps of a batch.
        work: what is done with the streams of a batch, for the log.

    Returns:
        The batches without those for which the GPU has too little memory; one at least.
    """
    left = tuple(batches)
    for batch in reversed(batches):
        try:
            record(batch)
        except Exception as error:
            smaller = tuple(each for each in batches if each < batch)
            if not smaller or not is_out_of_memory(error):
                raise
            log.warning(
                "the GPU has too little memory to %s %d streams together: at most %d are", work, batch, smaller[-1]
            )
            left = smaller
    return left


T = TypeVar("T")


class CachedOnGpu(Generic[T]):
    """A value that depends only on a module's weights or sizes. On a GPU it is computed once and cached.

    A CUDA graph would compute it again at each replay; the run before a capture caches it. A CPU computes it each time,
    so that a traced graph contains the computation. So does a GPU while weights require grad. The weights must not
    change once a value is cached.
    """

    def __init__(self) -> None:
        self._value: T | None = None

    def get(self, like: Tensor, compute: Callable[[], T]) -> T:
        """The value of `compute`. `like` is a tensor of the computation; its device and `requires_grad` decide."""
        if not like.is_cuda or like.requires_grad:
            return compute()
        if self._value is None:
            self._value = compute()
        return self._value
