"""What a model says that finds too little memory on its GPU while it warms up: which setting would be right."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from voice_clone.errors import Unsupported

MESSAGES = ("CUDA error: out of memory", "STATUS_ALLOC_FAILED")  # of CUDA; of cuBLAS and cuDNN

log = logging.getLogger(__name__)


@contextmanager
def memory_bounded_by(setting: str) -> Iterator[None]:
    """Name the setting that bounds the memory of what is done here, if there is too little of it.

    A graph that cannot be recorded does not say why: want of memory is one reason, and its remedy is another than that
    of a driver that records none.

    Raises:
        Unsupported: the GPU has too little memory.
    """
    try:
        yield
    except Exception as error:
        if not lacked_memory(error):
            raise
        log.error("the GPU has too little memory", exc_info=error)
        raise Unsupported(
            "the GPU has too little memory to warm this model up and to record its CUDA graphs; "
            f"set a smaller {setting}, or free the GPU"
        ) from None


def lacked_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it hides, is want of memory: of torch's allocator, or of CUDA and its libraries."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(message in str(error) for message in MESSAGES):
            return True
        error = error.__cause__ or error.__context__
    return False
