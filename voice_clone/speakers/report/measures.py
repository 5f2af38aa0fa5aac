"""What was measured of a clip: computed once, at its upload, and kept in the voice's record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.audio import Clip
from voice_clone.speakers.report.activity import activity
from voice_clone.speakers.report.clipping import clipped_share
from voice_clone.speakers.report.spectrum import Spectrum, bounded, spectrum

_LARGEST = 1e9  # of any figure in a report: a bundle may come from anybody
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
