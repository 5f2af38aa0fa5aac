"""What is done to the codec's samples of one stream before they are sent, while they come.

The chunks of a long text are joined by fades with silence between them. Long silences are cut, if the request wants
it. A clone gets the level of its reference, a voice without reference a fixed peak. The ends are faded, with silence
around them.
Source: omnivoice 0.2.1, `models/omnivoice.py` (`_post_process_audio`) and `utils/audio.py`.

The result does not depend on how the samples are cut. Each step holds back only what a later sample can still change:

- joints: nothing, because the plan says how long each chunk of the text is;
- silence: silence that may be cut, and no speech (see `silence.py`);
- level: nothing of a clone; without a reference the first chunk of the text, whose peak sets the level of all;
- ends: the last 0.1 s, which fade if nothing follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import InvalidArgument
from voice_clone.families.omnivoice.config import REF_RMS, REMOVE_SILENCE, TEXT_CHUNKS
from voice_clone.families.omnivoice.silence import SilenceFilter

Samples = NDArray[np.float32]

QUIET = 0.1  # RMS of a reference; below it the reference was made so loud, and the speech is made as quiet again
PEAK = 0.5  # of a speech without a reference
HUSH = 1e-6  # a peak that is not scaled
EDGE = 0.1  # seconds of each fade and of each silence
SILENCE = (500, 100, 100)  # milliseconds: a silence of twice the first is cut to that; the others stay at the ends


@dataclass(frozen=True)
class FinishPlan:
    """What the finish of a stream needs; the talker's plan sends it to the decoder as `arrays`.

    Attributes:
        ref_rms: of the reference clip, as its artifact says; 0: there is no reference.
        text_chunks: the frames of each chunk of the text, in order; one chunk, if the text is spoken in one piece.
        remove_silence: whether long silences are cut, and those at the ends.
    """

    ref_rms: float
    text_chunks: tuple[int, ...]
    remove_silence: bool

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """For `StreamPlan.voice`."""
        return {
            REF_RMS: np.array([self.ref_rms], np.float32),
            TEXT_CHUNKS: np.array(self.text_chunks, np.int32),
            REMOVE_SILENCE: np.array([self.remove_silence], np.uint8),
        }

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> FinishPlan:
        """The inverse of `arrays`.

        Raises:
            InvalidArgument: an array is missing or wrong.
        """
        rms, chunks, removes = arrays.get(REF_RMS), arrays.get(TEXT_CHUNKS), arrays.get(REMOVE_SILENCE)
        if rms is None or rms.dtype != np.float32 or rms.shape != (1,) or not 0 <= rms[0] < np.inf:
            raise InvalidArgument(f"the voice's {REF_RMS} must be FP32 [1], finite, and not below 0")
        if chunks is None or chunks.dtype != np.int32 or chunks.ndim != 1 or not len(chunks) or chunks.min() < 1:
            raise InvalidArgument(f"the voice's {TEXT_CHUNKS} must be INT32 [n], n > 0, each above 0")
        if removes is None or removes.dtype != np.uint8 or removes.shape != (1,) or removes[0] > 1:
            raise InvalidArgument(f"the voice's {REMOVE_SILENCE} must be UINT8 [1], 0 or 1")
        return cls(float(rms[0]), tuple(map(int, chunks)), bool(removes[0]))


class Finish:
    """The finish of one stream.

    Args:
        plan: of the stream.
        sample_rate: Hz.
        frame_samples: samples of a frame.
    """

    def __init__(self, plan: FinishPlan, sample_rate: int, frame_samples: int) -> None:
        self._joints = _Joints([frames * frame_samples for frames in plan.text_chunks], sample_rate)
        self._silence = SilenceFilter(sample_rate, *SILENCE) if plan.remove_silence else None
        self._level = _Level(plan.ref_rms)
        self._ends = _Ends(int(EDGE * sample_rate))

    def push(self, samples: Samples) -> Samples:
        """The next samples of the codec, float32 [n] -> those that are final now, float32 [m]."""
        heard: list[Samples] = []
        for piece in self._joints.pieces(samples):
            heard.append(self._ends.push(self._level.push(self._without_silence(piece))))
            if self._joints.after_first:
                heard.append(self._ends.push(self._level.settle()))
        return np.concatenate(heard) if heard else np.zeros(0, np.float32)

    def end(self) -> Samples:
        """No samples follow -> all that were held back."""
        rest = np.zeros(0, np.float32) if self._silence is None else self._silence.end()
        last = [self._level.push(rest), self._level.settle()]
        return np.concatenate([*(self._ends.push(each) for each in last), self._ends.end()])

    def _without_silence(self, samples: Samples) -> Samples:
        return samples if self._silence is None else self._silence.push(samples)


class _Joints:
    """Fades where chunks of the text meet, with as much silence between them.

    Official fades out what was joined so far, which at the first joint may be shorter than a fade, then fades in the
    next chunk.

    Args:
        lengths: samples of each chunk of the text.
        rate: samples a second.
    """

    def __init__(self, lengths: list[int], rate: int) -> None:
        self._lengths = lengths
        self._fade = int(3 * EDGE * rate) // 3
        self._chunk = 0
        self._done = 0  # samples of this chunk

    @property
    def after_first(self) -> bool:
        """Whether another chunk than the first one is heard now."""
        return self._chunk > 0

    def pieces(self, samples: Samples) -> list[Samples]:
        """The samples, in pieces that end where a chunk does."""
        pieces: list[Samples] = []
        while len(samples):
            last = self._chunk == len(self._lengths) - 1
            left = len(samples) if last else self._lengths[self._chunk] - self._done
            piece, samples = samples[:left], samples[left:]
            pieces.append(self._faded(piece))
            self._done += len(piece)
            if not last and self._done == self._lengths[self._chunk]:
                pieces.append(np.zeros(self._fade, np.float32))
                self._chunk, self._done = self._chunk + 1, 0
        return pieces

    def _faded(self, piece: Samples) -> Samples:
        length, places = self._lengths[self._chunk], np.arange(self._done, self._done + len(piece))
        faded = piece
        if self._chunk > 0:
            faded = _along(faded, places, np.linspace(0, 1, min(self._fade, length), dtype=np.float32))
        if self._chunk < len(self._lengths) - 1:
            joined = length if self._chunk == 0 else self._fade + length
            fade = np.linspace(1, 0, min(self._fade, joined), dtype=np.float32)
            faded = _along(faded, places - (length - len(fade)), fade)
        return faded


def _along(samples: Samples, places: NDArray[np.int64], fade: Samples) -> Samples:
    """Multiply the samples whose place is in the fade."""
    inside = (places >= 0) & (places < len(fade))
    if not inside.any():
        return samples
    faded = samples.copy()
    faded[inside] *= fade[places[inside]]
    return faded


class _Level:
    """The loudness of a stream.

    Args:
        ref_rms: as of `FinishPlan`.
    """

    def __init__(self, ref_rms: float) -> None:
        self._ref_rms = ref_rms
        self._held: list[Samples] | None = None if ref_rms else []
        self._peak = np.float32(0)

    def push(self, samples: Samples) -> Samples:
        """The next samples at their level; none while they are needed for it."""
        if self._held is None:
            return self._levelled(samples)
        self._held.append(samples)
        return np.zeros(0, np.float32)

    def settle(self) -> Samples:
        """The peak is known now -> what was held."""
        if self._held is None:
            return np.zeros(0, np.float32)
        held = np.concatenate([np.zeros(0, np.float32), *self._held])
        self._held, self._peak = None, np.abs(held).max(initial=np.float32(0))
        return self._levelled(held)

    def _levelled(self, samples: Samples) -> Samples:
        if self._ref_rms:
            return samples * np.float32(self._ref_rms) / np.float32(QUIET) if self._ref_rms < QUIET else samples
        return samples / self._peak * np.float32(PEAK) if self._peak > HUSH else samples


class _Ends:
    """Silence before and behind a stream, and fades at both ends. A stream without samples stays so.

    Args:
        edge: samples of each fade and each silence.
    """

    def __init__(self, edge: int) -> None:
        self._edge = edge
        self._held = np.zeros(0, np.float32)
        self._begun = False

    def push(self, samples: Samples) -> Samples:
        """The next samples -> those that are no part of the last fade, whatever follows."""
        self._held = np.concatenate([self._held, samples])
        before: list[Samples] = []
        if not self._begun:
            if len(self._held) < 2 * self._edge:  # the fades of a shorter stream are half of it
                return np.zeros(0, np.float32)
            self._begin(before, self._edge)
        ready = len(self._held) - self._edge
        final, self._held = self._held[:ready], self._held[ready:]
        return np.concatenate([*before, final])

    def end(self) -> Samples:
        """No samples follow -> the rest."""
        if not self._begun and not len(self._held):
            return self._held
        before: list[Samples] = []
        fade = self._edge
        if not self._begun:
            fade = min(self._edge, len(self._held) // 2)
            self._begin(before, fade)
        last = self._held.copy()
        if fade:
            last[-fade:] *= np.linspace(1, 0, fade, dtype=np.float32)
        return np.concatenate([*before, last, np.zeros(self._edge, np.float32)])

    def _begin(self, before: list[Samples], fade: int) -> None:
        self._begun = True
        before.append(np.zeros(self._edge, np.float32))
        self._held[:fade] *= np.linspace(0, 1, fade, dtype=np.float32)
