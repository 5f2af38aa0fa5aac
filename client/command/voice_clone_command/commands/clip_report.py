"""A voice and the report on its clip, in lines for people."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator

from voice_clone_client.types import Voice

from .common import in_words


def faults(voice: Voice, parser: ArgumentParser) -> Iterator[str]:
    """Say what was cut off the clip and what is wrong with it, in the words of a command."""
    report = voice.report or {}
    start, end = report.get("trimmed_start", 0.0), report.get("trimmed_end", 0.0)
    if start or end:
        yield f"trimmed: {start:.2f} s of silence at the start and {end:.2f} s at the end of the clip were cut off"
    for warning in voice.warnings:
        yield f"warning: {warning.code}: {in_words(warning.message, parser)}"


def description(voice: Voice, parser: ArgumentParser) -> Iterator[str]:
    """Write the voice in tab-separated columns: the name of a field, its value; and so each of its styles."""
    fields = {
        "name": voice.name,
        "generation": voice.generation,
        "digest": voice.digest,
        "consent": voice.consent,
        "description": voice.description,
        "clip": _clip(voice),
        "reference_text": voice.reference_text,
        **{
            f"{entry.model_type} {entry.mode}": entry.state
            + in_words(f": {entry.reason}" if entry.reason else "", parser)
            for entry in voice.artifacts
        },
        **_measurements(voice),
        **_recordings(voice),
    }
    for name, value in fields.items():
        if value is not None:
            yield f"{name}\t{value}"
    yield from (line.replace(": ", "\t", 1) for line in faults(voice, parser))
    for style, clip in voice.styles.items():
        yield from (f"{style} {line}" for line in description(clip, parser) if not line.startswith("name\t"))


def _recordings(voice: Voice) -> dict[str, str]:
    """The files of an upload of several, which of them is the clip, and how alike they are."""
    cosines = next((entry.cosines for entry in voice.artifacts if entry.cosines), {})
    speech = {str(take.number): f"{take.speech_seconds:.1f} s of speech" for take in voice.takes}
    return {
        f"file {number}": speech.get(number, "the clip")
        + (f", cosine {cosines[number]:.2f} to the others" if number in cosines else "")
        for number in cosines or speech
    }


def _clip(voice: Voice) -> str | None:
    if voice.duration is None:
        return "none: a speaker embedding"
    return f"{voice.duration:.2f} s, {voice.sample_rate} Hz, {voice.mime_type}, {voice.file_size} bytes"


def _measurements(voice: Voice) -> dict[str, str]:
    report = voice.report or {}
    return {title: form.format(report[key]) for key, title, form in _FORMS if key in report}


_FORMS = (
    ("speech_seconds", "speech", "{:.1f} s"),
    ("leading_silence", "silence before", "{:.2f} s"),
    ("trailing_silence", "silence after", "{:.2f} s"),
    ("level_dbfs", "level", "{:.0f} dBFS"),
    ("peak_dbfs", "peak", "{:.1f} dBFS"),
    ("snr_db", "above the noise", "{:.0f} dB"),
    ("clipped_share", "clipped samples", "{:.3%}"),
    ("dc_offset", "offset", "{:.2%} of full scale"),
    ("channel", "channel taken", "{}"),
    ("missing_seconds", "cut off", "{:.1f} s or more"),
    ("undecoded_bytes", "not decoded", "{} bytes"),
    ("speaking_rate", "speaking rate", "{:.1f} syllables a second"),
)
