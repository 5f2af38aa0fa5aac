"""What is wrong with a clip, by its report: warnings with a code for programs and a sentence for people.

The thresholds are such that a good recording has no warning, whoever speaks and in whatever language: a false alarm is
worse than a fault that goes unnoticed. perf/records/EXPERIMENTS.md has the measurements they come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from voice_clone.audio import Losses
from voice_clone.speakers.report.measures import ClipReport
from voice_clone.speakers.report.syllables import syllables

_CLIPPED = 0.0002  # share of samples
_NOISY = 15.0  # dB
_QUIET = -40.0  # dB of full scale
_OFFSET = 0.02  # of full scale
_SILENCE = 1.0  # seconds at an end
_SPEECH_SHARE = 0.4
_SPEECH = 3.0  # seconds
_NARROW = 16_000  # Hz
_SPOKEN = 0.01  # seconds: less is no speech
_SHOWN = 0.05  # seconds
_FASTEST, _SLOWEST = 11.0, 1.2  # syllables a second


class ClipWarning(NamedTuple):
    """A fault of a clip: a stable code, and a sentence."""

    code: str
    message: str


def speaking_rate(report: ClipReport, reference_text: str | None) -> float | None:
    """Syllables of the transcript a second of speech; None without a transcript or speech."""
    if reference_text is None or report.speech_seconds < _SPOKEN:
        return None
    return round(syllables(reference_text) / report.speech_seconds, 1)


def warnings_of(report: ClipReport, seconds: float, sample_rate: int, reference_text: str | None) -> list[ClipWarning]:
    """The warnings of a clip of these seconds, at this sample rate, with this transcript."""
    if report.speech_seconds < _SPOKEN:
        no_speech = ClipWarning("no_speech", "no speech was found: only noise, or a sound that never changes")
        return [*of_file(report), no_speech]
    return [
        *of_file(report),
        *_of_recording(report, sample_rate),
        *_of_silence(report, seconds),
        *_of_transcript(report, seconds, reference_text),
    ]


def of_file(file: ClipReport | Losses) -> Iterator[ClipWarning]:
    """The warnings that need no measurement: what of a file is not in its clip."""
    if file.channel is not None:
        yield ClipWarning(
            "out_of_phase",
            f"the channels are out of phase and cancel each other out, so channel {file.channel} alone was taken; "
            "check the microphone's cable, or record in mono",
        )
    if file.missing_seconds is not None:
        missing = f": {file.missing_seconds:.1f} s are missing" if file.missing_seconds >= _SHOWN else ""
        yield ClipWarning("truncated", f"the file is cut off at its end{missing}; send the whole file")
    if file.undecoded_bytes:
        yield ClipWarning(
            "undecoded",
            f"the last {file.undecoded_bytes} bytes of the file are no audio that can be decoded, and were left out; "
            "if the clip should go on there, convert the file again",
        )


def _of_recording(report: ClipReport, sample_rate: int) -> Iterator[ClipWarning]:
    if report.clipped_share >= _CLIPPED:
        share = f"{100 * report.clipped_share:.2g} % of the samples are clipped"
        yield ClipWarning("clipping", f"{share}: the recording is too loud and distorted; record it with less gain")
    if report.snr_db is not None and report.snr_db < _NOISY:
        above = f"the speech is only {report.snr_db:.0f} dB above the noise"
        yield ClipWarning("noise", f"{above}; {_NOISY:.0f} dB is the least, 30 dB is good: record in a quiet place")
    if report.level_dbfs is not None and report.level_dbfs < _QUIET:
        level = f"the speech is at {report.level_dbfs:.0f} dBFS"
        yield ClipWarning(
            "quiet", f"{level}, which is too quiet; -30 to -15 dBFS is good: record closer, or with more gain"
        )
    if abs(report.dc_offset) > _OFFSET:
        share = f"{100 * report.dc_offset:.0f} % of full scale"
        yield ClipWarning("dc_offset", f"the samples are off centre by {share}: a fault of the recorder; filter it out")
    if sample_rate < _NARROW:
        yield ClipWarning("low_sample_rate", f"{sample_rate} Hz is a telephone's sound; 24000 Hz or more is good")


def _of_silence(report: ClipReport, seconds: float) -> Iterator[ClipWarning]:
    for code, place, silence in (
        ("leading_silence", "before", report.leading_silence),
        ("trailing_silence", "after", report.trailing_silence),
    ):
        if silence > _SILENCE:
            yield ClipWarning(
                code, f"{silence:.1f} s of silence {place} the speech; cut it off, or upload with trim_silence"
            )
    if report.speech_seconds < _SPEECH:
        yield ClipWarning("little_speech", f"only {report.speech_seconds:.1f} s of speech; 5 to 15 s are good")
    elif report.speech_seconds < _SPEECH_SHARE * seconds:
        share = f"only {report.speech_seconds:.1f} of {seconds:.1f} s are speech"
        yield ClipWarning("mostly_silence", f"{share}; choose a clip with shorter pauses")


def _of_transcript(report: ClipReport, seconds: float, reference_text: str | None) -> Iterator[ClipWarning]:
    if reference_text is None:
        return
    count = syllables(reference_text)
    span = seconds - report.leading_silence - report.trailing_silence  # with its pauses
    if count > _FASTEST * span:
        said = f"reference_text has about {count:.0f} syllables, too many for {span:.1f} s"
        yield ClipWarning("transcript_too_long", f"{said}; give exactly the words spoken in the clip")
    elif count < _SLOWEST * report.speech_seconds:
        said = f"reference_text has about {count:.0f} syllables, too few for {report.speech_seconds:.1f} s of speech"
        yield ClipWarning("transcript_too_short", f"{said}; give all words spoken in the clip")
