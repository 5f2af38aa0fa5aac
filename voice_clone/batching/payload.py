"""What a frame of a stream holds: codec codes of any number and type, or a float latent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray


@dataclass(frozen=True)
class PayloadForm:
    """The form of one frame's payload.

    Attributes:
        width: numbers of a frame: codebooks, or the size of a latent.
        dtype: their type.
    """

    width: int
    dtype: npt.DTypeLike = np.int32

    def zeros(self, count: int) -> NDArray[Any]:
        """`count` frames of zeros, [count, width]."""
        return np.zeros((count, self.width), self.dtype)

    def join(self, frames: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Payloads [width] of n frames -> one array [n, width]; n may be 0."""
        return np.array(frames, dtype=self.dtype).reshape(len(frames), self.width)
