"""Cutting the silence off the ends of a clip. A margin stays, so that no faint sound of the speech is lost."""

from __future__ import annotations

from dataclasses import replace

from voice_clone.audio import Clip, ClipLimits, encode_wav
from voice_clone.errors import InvalidArgument
from voice_clone.speakers.report.activity import activity
from voice_clone.speakers.report.measures import speech_bounds
from voice_clone.speakers.report.spectrum import bounded, spectrum

BEFORE, AFTER = 0.3, 0.5  # seconds of silence that stay. In context, a talker begins where the clip ends: after a pause


def trim_silence(clip: Clip, limits: ClipLimits) -> tuple[Clip, float, float]:
    """The clip without the silence at its ends, and the seconds cut at its start and at its end.

    The samples that stay are those of the clip, and the new clip's file is a WAV of exactly these: whoever decodes it,
    now or later, here or with another program, gets the same. If there is nothing to cut, the clip itself.

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
            f"without the silence at its ends the audio is {(end - start) / rate:.2f} s long; "
            f"it must be {limits.min_seconds:g} to {limits.max_seconds:g} s"
        )
    waveform = clip.waveform[start:end].copy()
    encoded = encode_wav(waveform, rate)
    if len(encoded) > limits.max_bytes:
        raise InvalidArgument(
            f"the audio has {len(encoded)} bytes once trimmed, as a WAV of 32-bit samples; at most {limits.max_bytes} "
            "are allowed: send it at a lower sample rate, or cut it yourself"
        )
    trimmed = replace(clip, waveform=waveform, mime_type="audio/wav", encoded=encoded)
    return trimmed, start / rate, (total - end) / rate
