"""What is wrong with a clip, by its report: warnings with a code for programs and a sentence for people.

The thresholds give no warning for a good recording, whatever the speaker and the language: a false alarm is worse than
a fault that goes unnoticed. perf/records/EXPERIMENTS.md has the measurements they come from.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from voice_clone.audio import Losses
from voice_clone.speakers.clip_report import ClipReport

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
_ALIKE = 0.6  # cosine of two speaker embeddings
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
            f"{file.undecoded_bytes} bytes of the file are no audio that can be decoded, and were left out; "
            "if speech is missing, convert the file again",
        )


def of_takes(cosines: Iterable[Mapping[int, float]]) -> Iterator[ClipWarning]:
    """The warnings of recordings that sound like another speaker. `cosines`: of each family, by numbers of files."""
    lowest: dict[int, float] = {}
    for of_family in cosines:
        for number, cosine in of_family.items():
            lowest[number] = min(cosine, lowest.get(number, 1.0))
    for number, cosine in lowest.items():
        if cosine < _ALIKE:
            unlike = f"file {number} may be of another speaker: the cosine of its speaker embedding to the mean of the"
            yield ClipWarning(
                "other_speaker", f"{unlike} others is {cosine:.2f}, and {_ALIKE} is the least; hear it, or leave it out"
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
                code, f"{silence:.1f} s of silence {place} the speech; cut it off, or upload with `trim_silence`"
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
        said = f"`reference_text` has about {count:.0f} syllables, too many for {span:.1f} s"
        yield ClipWarning("transcript_too_long", f"{said}; give exactly the words spoken in the clip")
    elif count < _SLOWEST * report.speech_seconds:
        said = f"`reference_text` has about {count:.0f} syllables, too few for {report.speech_seconds:.1f} s of speech"
        yield ClipWarning("transcript_too_short", f"{said}; give all words spoken in the clip")


_VOWELS = frozenset("aeiouyæœøıаеиоуыэюяёєіїαεηιουω")  # of the alphabets that write their vowels
_ALPHABETS = (("a", "\u024f"), ("\u0370", "\u052f"), ("\u1e00", "\u1fff"))  # Latin; Greek and Cyrillic; more of both
_SYLLABLES = (  # one character, one syllable (or mora)
    ("\u3041", "\u30ff"),  # Kana
    ("\u3400", "\u9fff"),  # Chinese characters, here and below
    ("\uac00", "\ud7a3"),  # Hangul
    ("\uf900", "\ufaff"),
    ("\U00020000", "\U0003ffff"),
)
_PART_OF_ONE = frozenset("ぁぃぅぇぉゃゅょゎァィゥェォャュョヮ")  # small Kana change the one before
_DIGIT = 1.5  # 7 is one to three syllables in most languages
_LETTER = 0.5  # of scripts that leave vowels out or attach them to a letter, such as Arabic, Hindi and Thai


def syllables(text: str) -> float:
    """About how many syllables the text has: groups of vowels, or characters where each is a syllable."""
    count, in_vowels = 0.0, False
    for character in unicodedata.normalize("NFKC", text).lower():
        if unicodedata.combining(character):
            continue
        base = unicodedata.normalize("NFD", character)[0]
        is_vowel = base in _VOWELS
        if is_vowel:
            count += not in_vowels
        elif _within(character, _SYLLABLES):
            count += character not in _PART_OF_ONE
        elif character.isdigit():
            count += _DIGIT
        elif character.isalpha() and not _within(character, _ALPHABETS):
            count += _LETTER
        in_vowels = is_vowel
    return count


def _within(character: str, ranges: tuple[tuple[str, str], ...]) -> bool:
    return any(first <= character <= last for first, last in ranges)
