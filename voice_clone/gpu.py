"""Whether there is a GPU's driver, and what a process does when its GPU fails: too little memory, or a context that is
unusable; and the thread that computes. Imports no torch itself.

After an illegal access, an uncorrectable memory error, or a fault of another process under MPS each further call to the
GPU fails until the process ends. So the process exits. The server's other models notice it and end the server, which
its supervisor starts again: `voice_clone/triton/lost_models.py`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from voice_clone.errors import Unsupported

OUT_OF_MEMORY = ("CUDA error: out of memory", "STATUS_ALLOC_FAILED")  # messages of CUDA; of cuBLAS and cuDNN

_DRIVERS = ("nvidia*", "nvhost*", "nvgpu", "dxg")  # in /dev: of a GPU's driver, of those of Jetson, of Windows' Linux

Work = Callable[[], None]

log = logging.getLogger(__name__)


def has_driver() -> bool:
    """Whether this machine, or container, has the driver of a GPU."""
    return any(file for name in _DRIVERS for file in Path("/dev").glob(name))


@contextmanager
def memory_bounded_by(setting: str) -> Iterator[None]:
    """Name the setting to change if GPU memory runs out in the body, which warms a model up.

    A graph that cannot be recorded does not say why. Too little memory is one reason, and needs another remedy than a
    driver that records no graphs.

    Raises:
        Unsupported: the GPU has too little memory.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        log.error("the GPU has too little memory", exc_info=error)
        raise Unsupported(
            "the GPU has too little memory to warm this model up and to record its CUDA graphs; "
            f"set a smaller {setting}, or free the GPU"
        ) from None


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, says that memory ran out, for torch's allocator or CUDA's libraries."""
    torch = sys.modules.get("torch")  # a process that has not imported it uses no GPU
    while error is not None and torch is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(message in str(error) for message in OUT_OF_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_fatal(error: BaseException) -> bool:
    """Whether an error says that the CUDA context of this process is unusable."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, torch.AcceleratorError) or isinstance(error, torch.OutOfMemoryError):
        return False
    if torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except Exception:
            return True
        return False
    return True


def end_if_fatal(error: BaseException) -> None:
    """Exit if the CUDA context is unusable."""
    if is_fatal(error):
        log.critical("this process has lost its GPU and ends; the server ends, too, and must be started again")
        end_process()


def log_failure(to: logging.Logger, error: BaseException, message: str, *values: object) -> None:
    """Log why some work failed; exit if the CUDA context is unusable."""
    to.error(message, *values, exc_info=error)
    end_if_fatal(error)


def end_process() -> None:
    """At once, without the clean-up of the interpreter and of CUDA, which may hang."""
    os._exit(1)


def start_thread(name: str, serve: Work, warm_up: Work | None = None) -> threading.Thread:
    """A running thread that has called `warm_up` and calls `serve`.

    A GPU's libraries keep handles and plans for each thread: what another one has warmed up is cold in this one.

    If `serve` raises, this process ends: requests would wait for ever. The models of the server notice its end.

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
        try:
            serve()
        except BaseException:
            log.critical("the thread %s has failed; this process ends", name, exc_info=True)
            end_process()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    warm.result()
    return thread
