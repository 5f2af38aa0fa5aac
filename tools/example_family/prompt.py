"""What the talker is asked to say, in whose voice. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.example_family.config import ChirpConfig
from voice_clone.errors import InvalidArgument

TIMBRE, TRANSCRIPT, TEXT = "timbre", "transcript", "text"


@dataclass(frozen=True, eq=False)
class Prompt:
    """One synthesis request for the talker.

    Attributes:
        timbre: float16 [rows, timbre size].
        transcript, text: uint8 [n], UTF-8.
        vibrato: 0 is none.
        breath: breathe in before the first word.
    """

    timbre: NDArray[np.float16]
    transcript: NDArray[np.uint8]
    text: NDArray[np.uint8]
    vibrato: float = 0.0
    breath: bool = False

    def check(self, config: ChirpConfig) -> None:
        """Check a prompt against the checkpoint.

        Raises:
            InvalidArgument: a type, a shape or a value is wrong.
        """
        check_timbre(self.timbre, config.timbre_size)
        for name in (TRANSCRIPT, TEXT):
            array = getattr(self, name)
            if array.dtype != np.uint8 or array.ndim != 1 or array.size == 0:
                raise InvalidArgument(f"prompt: {name} must be UINT8 [bytes] and not empty")


def check_timbre(timbre: NDArray[Any], size: int) -> None:
    """
    Raises:
        InvalidArgument: it is no float16 [rows, size] of finite numbers.
    """
    if timbre.dtype != np.float16 or timbre.ndim != 2 or timbre.shape[1] != size or len(timbre) == 0:
        raise InvalidArgument(f"timbre must be FP16 [rows, {size}] with at least one row")
    if not np.isfinite(timbre).all():
        raise InvalidArgument("timbre must be finite; it holds NaN or infinity")
