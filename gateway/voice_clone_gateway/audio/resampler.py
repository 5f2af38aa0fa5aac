"""Sample-rate conversion of a stream."""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray


class Resampler:
    """Stateful resampler (libsoxr, quality HQ: pass band to 0.91 of the lower Nyquist frequency, linear phase).

    The output is bit-identical for any division of the signal into chunks. `n` input samples give
    round(n * rate_out / rate_in) output samples. The latency is 30 ms, from 24 to 8 kHz 65 ms.

    Args:
        rate_in: Hz.
        rate_out: Hz.
    """

    def __init__(self, rate_in: int, rate_out: int) -> None:
        self._stream = soxr.ResampleStream(rate_in, rate_out, num_channels=1, dtype="float32", quality="HQ")

    def push(self, samples: NDArray[np.float32], final: bool) -> NDArray[np.float32]:
        """The output after these samples.

        Args:
            samples: float32 [n].
            final: no samples follow; the output is complete.
        """
        out: NDArray[np.float32] = self._stream.resample_chunk(samples, last=final)
        return out
