"""Sample-rate conversion of a stream."""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray


class Resampler:
    """Stateful resampler (libsoxr, quality HQ: pass band to 0.91 of the lower Nyquist frequency, linear phase).

    However a signal is cut into chunks, the output is bit for bit that of the whole. `n` samples in give
    round(n * rate_out / rate_in) out. It lags by 30 ms, from 24 to 8 kHz by 65 ms.

    Args:
        rate_in: Hz.
        rate_out: Hz.
    """

    def __init__(self, rate_in: int, rate_out: int) -> None:
        self._stream = soxr.ResampleStream(rate_in, rate_out, num_channels=1, dtype="float32", quality="HQ")

    def push(self, samples: NDArray[np.float32], final: bool) -> NDArray[np.float32]:
        """What can go out after these samples.

        Args:
            samples: float32 [n].
            final: no samples follow; all that is left comes out.
        """
        out: NDArray[np.float32] = self._stream.resample_chunk(samples, last=final)
        return out
