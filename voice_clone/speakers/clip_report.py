"""The report on a reference clip: its measurements, and the cutting of its silence.

It is computed once, at the upload, and kept in the record of the voice. `spectrum` splits the clip into frames and
bands; `activity` finds speech and noise in them; `clipped_share` finds clipped samples. `clip_warnings` reads the
report.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.audio import Clip, ClipLimits, encode_wav
from voice_clone.errors import InvalidArgument

_LARGEST = 1e9  # of any figure in a report: a bundle may come from any server
MOST_SNR = 60.0  # dB: a recording that is cleaner than this has silence made by a computer between its words


@dataclass(frozen=True)
class ClipReport:
    """Measurements of a clip.

    Attributes:
        speech_seconds: of sound that stands out of the noise, with the short gaps in it; 0: there is none.
        leading_silence, trailing_silence: seconds before the first and after the last such sound.
        peak_dbfs: the loudest sample, in dB of full scale.
        level_dbfs: the mean power of the speech, in dB of a sample at full scale; None without speech, as snr_db.
        snr_db: the speech above the noise of the recording, at most MOST_SNR.
        clipped_share: the share of samples that are clipped.
        dc_offset: the mean of the samples.
        trimmed_start, trimmed_end: seconds of silence that were cut off at the upload, before all this was measured.
        channel: the only channel that was taken, counted from 1, because the channels cancel each other out.
        missing_seconds: of audio that the file lacks at its end, 0 if it is not known how much; None: it is whole.
        undecoded_bytes: at the end of the file, which are no audio.
    """

    speech_seconds: float
    leading_silence: float
    trailing_silence: float
    peak_dbfs: float
    clipped_share: float
    dc_offset: float
    level_dbfs: float | None = None
    snr_db: float | None = None
    trimmed_start: float = 0.0
    trimmed_end: float = 0.0
    channel: int | None = None
    missing_seconds: float | None = None
    undecoded_bytes: int | None = None

    def to_json(self) -> dict[str, float]:
        """The measurements that there are, fit for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, values: Any) -> ClipReport:
        """The report that `to_json` made; measurements that this version does not know are left out.

        Raises:
            ValueError, TypeError: it is no such report.
        """
        if not isinstance(values, Mapping):
            raise ValueError("not a report")
        known = {each.name: values[each.name] for each in fields(cls) if each.name in values}
        for name, value in known.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
                raise ValueError(f"{name} is no number of a report")
        return cls(**known)

    def trimmed(self, start: float, end: float) -> ClipReport:
        """The same of a clip from which these seconds were cut."""
        return replace(self, trimmed_start=round(start, 6), trimmed_end=round(end, 6))

    def uploaded(self, first: ClipReport) -> ClipReport:
        """The same of a clip that a server cut before: what only this server knows is in its report."""
        if not first.trimmed_start and not first.trimmed_end:
            return self
        return replace(
            self,
            trimmed_start=first.trimmed_start,
            trimmed_end=first.trimmed_end,
            channel=first.channel,
            missing_seconds=first.missing_seconds,
            undecoded_bytes=first.undecoded_bytes,
        )


def measure(clip: Clip) -> ClipReport:
    """The report of a clip."""
    samples, rate = bounded(clip.waveform), clip.sample_rate
    frames = spectrum(samples, rate)
    sound = activity(frames)
    bounds = speech_bounds(frames, sound.spoken, len(samples))
    peak = float(np.abs(samples).max())
    missing = clip.losses.missing_seconds
    report = ClipReport(
        speech_seconds=round(np.count_nonzero(sound.spoken) * frames.hop / rate, 3),
        leading_silence=round((bounds[0] if bounds else len(samples)) / rate, 3),
        trailing_silence=round((len(samples) - bounds[1]) / rate if bounds else 0.0, 3),
        peak_dbfs=_decibels(peak**2),
        clipped_share=round(clipped_share(samples), 6),
        dc_offset=round(float(np.mean(samples, dtype=np.float64)), 5),
        channel=clip.losses.channel,
        missing_seconds=None if missing is None else round(missing, 3),
        undecoded_bytes=clip.losses.undecoded_bytes or None,
    )
    if not sound.active.any():
        return report
    speech = float(frames.bands.sum(axis=1)[sound.active].mean()) - sound.noise
    snr = min(_decibels(max(speech, 0.0)) - _decibels(sound.noise), MOST_SNR)
    return replace(report, level_dbfs=_decibels(float(frames.power[sound.active].mean())), snr_db=round(snr, 1))


def speech_bounds(frames: Spectrum, spoken: NDArray[np.bool_], samples: int) -> tuple[int, int] | None:
    """The first sample of the speech and the one after its last; None if there is no speech."""
    found = np.flatnonzero(spoken)
    if not len(found):
        return None
    at_end = found[-1] == len(spoken) - 1  # the samples after the last whole frame belong to it
    return int(found[0]) * frames.hop, samples if at_end else int(found[-1]) * frames.hop + frames.window


def _decibels(power: float) -> float:
    return round(10 * math.log10(max(power, 1e-12)), 1)


WINDOW, HOP = 0.032, 0.010  # seconds
BANDS = 20  # of equal width in mel
_LOWEST, _HIGHEST = 100.0, 8000.0  # Hz: below is hum, above little of speech
_HIGHEST_SAMPLE = 10.0  # of full scale: files of floats may hold any number, and its square would be infinite
_BLOCK = 256  # frames transformed at a time: bounds memory whatever the sample rate


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Frames of a clip: frame k is centred on sample k * hop + window / 2.

    Attributes:
        power: float64 [frames], mean square of the frame's samples.
        bands: float64 [frames, BANDS], the same, split by frequency.
        hop, window: samples.
    """

    power: NDArray[np.float64]
    bands: NDArray[np.float64]
    hop: int
    window: int


def bounded(waveform: NDArray[np.float32]) -> NDArray[np.float32]:
    """The waveform, with samples that no recorder makes at a number whose square is finite."""
    return np.clip(waveform, -_HIGHEST_SAMPLE, _HIGHEST_SAMPLE)


def spectrum(waveform: NDArray[np.float32], rate: int) -> Spectrum:
    """The spectrum of a waveform, float32 [samples], bounded, at `rate` Hz; it has at least `WINDOW` seconds."""
    window, hop = round(WINDOW * rate), round(HOP * rate)
    weights = np.hanning(window).astype(np.float32)
    weights /= math.sqrt(float(np.mean(weights**2)))  # a window does not change the mean square
    frames = np.lib.stride_tricks.sliding_window_view(waveform, window)[::hop]
    first = _edges(rate, window)
    power, bands = [], []
    for start in range(0, len(frames), _BLOCK):
        block = frames[start : start + _BLOCK] * weights
        power.append(np.mean(block**2, axis=1))
        squares = np.abs(np.fft.rfft(block, axis=1)) ** 2
        bands.append(np.add.reduceat(squares[:, : first[-1]], first[:-1], axis=1) * (2 / window**2))
    return Spectrum(np.concatenate(power).astype(float), np.concatenate(bands).astype(float), hop, window)


def _edges(rate: int, window: int) -> NDArray[np.int64]:
    """The first bin of each band, and the one after the last band."""
    low, high = (1127 * math.log1p(f / 700) for f in (_LOWEST, min(_HIGHEST, rate / 2)))
    hertz = 700 * np.expm1(np.linspace(low, high, BANDS + 1) / 1127)
    edges: NDArray[np.int64] = np.round(hertz * window / rate).astype(np.int64)
    return edges


_SMOOTHED = 5  # frames
_QUANTILE, _BIAS = 0.05, 1.4  # the mean power of white noise is _BIAS times this quantile of its smoothed power
_ABOVE = 10.0  # a band with this many times its noise is active: white noise alone never reaches it
_LOUD = 0.95  # quantile of the frames' power: the loud sounds of a speech
_FAINT = 1e-5  # of a loud frame: less is silence, even if the noise is fainter still
_SHORTEST = 3  # frames of a sound; a shorter one is a click
_GAP = 20  # frames: a shorter gap belongs to the speech around it


@dataclass(frozen=True, eq=False)
class Activity:
    """Which frames of a clip have sound.

    Attributes:
        active: bool [frames], whether the frame holds sound that stands out of the noise.
        spoken: bool [frames], the same without its shortest gaps.
        noise: mean square of the noise in all bands.
    """

    active: NDArray[np.bool_]
    spoken: NDArray[np.bool_]
    noise: float


def activity(frames: Spectrum) -> Activity:
    """Find the frames of a clip whose sound stands out of the noise, and the noise.

    The noise is estimated in each band: between its sounds, speech leaves every band quiet for moments, even where the
    speaker makes no pause. So the power of the noise is a low quantile of the band's power over time, times a constant.
    (The idea is that of minimum statistics: R. Martin, IEEE Trans. Speech and Audio Processing 9(5), 2001.)
    """
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


_TOP = 0.99  # of the highest sample: the level at which clipped samples pile up
_BELOW = 0.95  # the range down to here shows how many samples a wave has so near its top if it is not clipped
_PILE = 5.0  # times as many a unit of level; a pure tone has three times as many
_FULL = 0.999  # full scale


def clipped_share(waveform: NDArray[np.float32]) -> float:
    """The share of samples that are clipped, 0 to 1: at full scale, or piled up at the clip's own limit.

    A clip that was recorded too loud and made softer afterwards still has flat tops. The louder a sample of speech,
    the rarer it is; samples that pile up at the highest level were cut off there. Above and below zero are judged
    apart, because a microphone may limit them differently.
    """
    at_full_scale = float(np.mean(np.abs(waveform) >= _FULL))
    return max(at_full_scale, sum(_piled_up(side) for side in (waveform, -waveform)))


def _piled_up(side: NDArray[np.float32]) -> float:
    peak = float(side.max(initial=0.0))
    if peak <= 0.0:
        return 0.0
    top = int(np.count_nonzero(side >= _TOP * peak))
    below = int(np.count_nonzero(side >= _BELOW * peak)) - top
    usual = below * (1 - _TOP) / (_TOP - _BELOW)  # in the top if the levels there were as common as those below it
    return top / len(side) if top > _PILE * usual + 1 else 0.0


BEFORE, AFTER = 0.3, 0.5  # seconds of silence that stay. In context, a talker begins where the clip ends: after a pause


def trim_silence(clip: Clip, limits: ClipLimits) -> tuple[Clip, float, float]:
    """The clip without the silence at its ends, and the seconds cut at its start and at its end.

    A margin stays, so that no faint sound of the speech is lost.

    The samples that stay are those of the clip, and the new clip's file is a WAV of exactly these: every program that
    decodes it gets the same. If there is nothing to cut, the clip itself is returned.

    Raises:
        InvalidArgument: what remains is too short, or its file would be too big.
    """
    rate, total = clip.sample_rate, len(clip.waveform)
    frames = spectrum(bounded(clip.waveform), rate)
    bounds = speech_bounds(frames, activity(frames).spoken, total)
    if bounds is None:
        return clip, 0.0, 0.0
    start, end = max(0, bounds[0] - round(BEFORE * rate)), min(total, bounds[1] + round(AFTER * rate))
    if (start, end) == (0, total):
        return clip, 0.0, 0.0
    if end - start < limits.min_seconds * rate:
        raise InvalidArgument(
            f"without the silence at its ends the `audio` is {(end - start) / rate:.2f} s long; "
            f"it must be {limits.min_seconds:g} to {limits.max_seconds:g} s"
        )
    waveform = clip.waveform[start:end].copy()
    encoded = encode_wav(waveform, rate)
    if len(encoded) > limits.max_bytes:
        raise InvalidArgument(
            f"the `audio` has {len(encoded)} bytes once trimmed, as a WAV of 32-bit samples; at most "
            f"{limits.max_bytes} are allowed: send it at a lower sample rate, or cut it yourself"
        )
    trimmed = replace(clip, waveform=waveform, mime_type="audio/wav", encoded=encoded)
    return trimmed, start / rate, (total - end) / rate
