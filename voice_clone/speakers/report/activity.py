"""Where a clip has sound that stands out of its noise, and how loud the noise is.

The noise is estimated in each band: between its sounds, speech leaves every band quiet for moments, even where the
speaker makes no pause. So a low quantile of the band's power over time is the power of the noise, but for a constant.
(The idea is that of minimum statistics: R. Martin, IEEE Trans. Speech and Audio Processing 9(5), 2001.)
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voice_clone.speakers.report.spectrum import Spectrum

_SMOOTHED = 5  # frames
_QUANTILE, _BIAS = 0.05, 1.4  # the mean power of white noise is _BIAS times this quantile of its smoothed power
_ABOVE = 10.0  # a band with this many times its noise is active: white noise alone never reaches it
_LOUD = 0.95  # quantile of the frames' power: the loud sounds of a speech
_FAINT = 1e-5  # of a loud frame: less is silence, even if the noise is fainter still
_SHORTEST = 3  # frames of a sound; a shorter one is a click
_GAP = 20  # frames: a shorter gap belongs to the speech around it


@dataclass(frozen=True, eq=False)
class Activity:
    """The frames of a clip, told apart.

    Attributes:
        active: bool [frames], whether the frame holds sound that stands out of the noise.
        spoken: bool [frames], the same without its shortest gaps.
        noise: mean square of the noise in all bands.
    """

    active: NDArray[np.bool_]
    spoken: NDArray[np.bool_]
    noise: float


def activity(frames: Spectrum) -> Activity:
    """Tell the frames of a clip apart."""
    smooth = _smoothed(frames.bands)
    noise = _BIAS * np.quantile(smooth, _QUANTILE, axis=0)  # [bands]
    loud = float(np.quantile(frames.bands.sum(axis=1), _LOUD))
    standing_out = (smooth > np.maximum(_ABOVE * noise, _FAINT * loud)).any(axis=1)
    active = _without_runs(standing_out, True, _SHORTEST)
    return Activity(active, _without_runs(active, False, _GAP), float(noise.sum()))


def _smoothed(bands: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of each frame and its neighbours; at the ends, of those that there are."""
    width = min(_SMOOTHED, len(bands))
    sums = np.concatenate([np.zeros((1, bands.shape[1])), np.cumsum(bands, axis=0)])
    means = (sums[width:] - sums[:-width]) / width
    before = (len(bands) - len(means)) // 2
    return np.pad(means, ((before, len(bands) - len(means) - before), (0, 0)), mode="edge")


def _without_runs(flags: NDArray[np.bool_], kind: bool, most: int) -> NDArray[np.bool_]:
    """`flags` without the runs of `kind` that are shorter than `most`; those of False at the ends stay."""
    changes = np.flatnonzero(np.diff(flags)) + 1
    edges = np.concatenate([[0], changes, [len(flags)]])
    out = flags.copy()
    for start, end in itertools.pairwise(edges.tolist()):
        at_an_end = start == 0 or end == len(flags)
        if flags[start] == kind and end - start < most and (kind or not at_an_end):
            out[start:end] = not kind
    return out
