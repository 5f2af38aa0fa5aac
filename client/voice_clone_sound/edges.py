"""The quiet beginning and end of a speech, beside a pause that has a length of its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

KEPT = 0.05
"""Seconds of quiet that stay."""
_FADE = 0.005
_QUIET = 10 ** (-50 / 20)


class QuietEdges:
    """Cuts what is quiet to `KEPT`, and fades there. Where less is quiet, the samples stay as they are.

    The output does not depend on the division into chunks. Quiet samples wait for what follows them, no others.

    Args:
        rate: Hz.
        begin, end: which edges are cut.
    """

    def __init__(self, rate: int, begin: bool, end: bool) -> None:
        self._kept, self._fade = round(KEPT * rate), round(_FADE * rate)
        self._end = end
        self._begun = not begin
        self._dropped = False  # something before the first samples
        self._quiet = 0  # samples at the end of the output
        self._held = np.zeros(0, np.float32)

    def push(self, samples: NDArray[np.float32], final: bool, followed: bool = True) -> NDArray[np.float32]:
        """The output after these samples.

        Args:
            samples: float32 [n].
            final: no samples follow.
            followed: false: behind them is no silence after all, so their end stays.
        """
        samples = np.concatenate([self._held, samples])
        loud = np.flatnonzero(np.abs(samples) > _QUIET)
        if not self._begun:
            samples = self._cut_begin(samples, loud[0] if len(loud) else len(samples))
            self._begun = bool(len(loud))
            if not self._begun and not final:
                self._held = samples
                return samples[:0]
            loud = np.flatnonzero(np.abs(samples) > _QUIET)
        if not self._end:
            self._held = samples[:0]
            return samples
        after = int(loud[-1]) + 1 if len(loud) else 0  # the last loud sample
        if len(loud):
            self._quiet = 0
        room = self._kept - self._quiet  # for quiet ones behind it
        if final and not followed:
            return samples
        cut = final and len(samples) - after > room
        out = samples[: after + max(0, room if final else room - self._fade)]
        self._quiet += len(out) - after
        self._held = samples[len(out) :]
        if cut:
            fade = min(self._fade, len(out))
            out = np.concatenate([out[: len(out) - fade], out[len(out) - fade :] * _ramp(fade)[::-1]])
        return out

    def _cut_begin(self, samples: NDArray[np.float32], loud: int) -> NDArray[np.float32]:
        """The samples from shortly before the first loud one."""
        begin = max(0, loud - self._kept)
        self._dropped = self._dropped or begin > 0
        samples = samples[begin:]
        if self._dropped and loud < begin + len(samples):
            fade = min(self._fade, len(samples))
            samples = np.concatenate([samples[:fade] * _ramp(fade), samples[fade:]])
        return samples


def _ramp(count: int) -> NDArray[np.float32]:
    return (np.arange(count, dtype=np.float32) + 1) / (count + 1)
