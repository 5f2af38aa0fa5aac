"""Counter-based random numbers: a draw is a pure function of (seed, frame, place in the frame).

Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. There is no
state to share, so no stream's draws can depend on another stream or on the shape of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))  # added to the key in each round
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_HALF_A_STEP = 2.0**-33  # of the uniform numbers, which may be 0


def philox4x32(counter: npt.NDArray[np.uint64], key: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Do ten rounds of Philox.

    Args:
        counter: uint64 [..., 4], each value below 2**32.
        key: uint64 [..., 2], each value below 2**32; broadcast against `counter`.

    Returns:
        uint64 [..., 4], each value below 2**32.
    """
    c0, c1, c2, c3 = np.moveaxis(counter, -1, 0)
    k0, k1 = np.moveaxis(key, -1, 0)
    for _ in range(_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1)


class Draws:
    """The random numbers of one stream, made ahead for several frames, because a call costs the same for any number of
    frames.

    Args:
        seed: 64 bits.
        count: numbers a frame.
    """

    AHEAD = 32  # frames

    def __init__(self, seed: int, count: int) -> None:
        self._seed = seed
        self._count = count
        self._block = -1
        self._made = np.zeros((self.AHEAD, count))

    def of(self, frame: int) -> npt.NDArray[np.float64]:
        """float64 [count], as `uniforms` gives them."""
        block, place = divmod(frame, self.AHEAD)
        if block != self._block:
            frames = range(block * self.AHEAD, (block + 1) * self.AHEAD)
            self._made = uniforms([self._seed] * self.AHEAD, frames, self._count)
            self._block = block
        drawn: npt.NDArray[np.float64] = self._made[place]
        return drawn


class NormalDraws(Draws):
    """Standard normal deviates: the quantiles of uniform numbers in the middle of their steps."""

    def of(self, frame: int) -> npt.NDArray[np.float64]:
        """float64 [count]."""
        from statistics import NormalDist  # 5 ms, which talkers of codes do without

        return np.array(list(map(NormalDist().inv_cdf, (super().of(frame) + _HALF_A_STEP).tolist())))


def uniforms(seeds: Sequence[int], frames: Sequence[int], count: int) -> npt.NDArray[np.float64]:
    """Return the numbers in [0, 1) of B frames, of one stream or several.

    Args:
        seeds: B numbers of 64 bits, of the frames' streams.
        frames: B frame indices.
        count: numbers of a frame.

    Returns:
        float64 [B, count], multiples of 2**-32.
    """
    seed = np.array(seeds, dtype=np.uint64)
    counter = np.zeros((len(seed), count, 4), dtype=np.uint64)
    counter[..., 0] = np.arange(count, dtype=np.uint64)
    counter[..., 1] = np.array(frames, dtype=np.uint64)[:, None]
    key = np.stack([seed & _LOW, seed >> _SHIFT], axis=-1)[:, None]  # [B, 1, 2]
    return philox4x32(counter, key)[..., 0].astype(np.float64) * 2.0**-32
