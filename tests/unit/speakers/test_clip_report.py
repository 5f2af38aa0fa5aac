"""The report on a clip: known faults are measured and reported, and a clean recording has none."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voice_clone.audio import Clip, ClipLimits, decode, encode_wav
from voice_clone.errors import InvalidArgument
from voice_clone.speakers.clip_report import ClipReport, measure, trim_silence
from voice_clone.speakers.clip_warnings import speaking_rate, syllables, warnings_of

DATA = Path(__file__).resolve().parents[3] / "tools" / "data"
TEXT = (DATA / "reference.txt").read_text(encoding="utf-8").strip()
SPEECH, RATE = soundfile.read(DATA / "reference.wav", dtype="float32")
Samples = NDArray[np.float32]


def clip(samples: NDArray[np.floating], rate: int = RATE) -> Clip:
    return Clip(samples.astype(np.float32), rate, "audio/wav", b"")


def codes(samples: NDArray[np.floating], rate: int = RATE, text: str | None = TEXT) -> list[str]:
    """The codes of the warnings of a clip."""
    made = clip(samples, rate)
    return [warning.code for warning in warnings_of(measure(made), made.seconds, rate, text)]


def noise(like: Samples, seed: int = 0) -> Samples:
    return np.random.default_rng(seed).standard_normal(len(like)).astype(np.float32)


def with_noise(samples: Samples, snr: float) -> Samples:
    """Speech with white noise whose power is `snr` dB below that of its sounds: the blocks of 200 samples that
    are at most 30 dB softer than the loudest."""
    power = np.mean(samples[: len(samples) // 200 * 200].reshape(-1, 200) ** 2, axis=1)
    loud = power[power > power.max() / 1000]
    noisy: Samples = samples + noise(samples) * np.sqrt(np.mean(loud) / 10 ** (snr / 10))
    return noisy


def padded(before: float, after: float) -> Samples:
    """The speech with seconds of the silence of a computer around it."""
    return np.concatenate([np.zeros(round(before * RATE)), SPEECH, np.zeros(round(after * RATE))]).astype(np.float32)


def resampled(rate: int) -> Samples:
    out: Samples = soxr.resample(SPEECH, RATE, rate)
    return out


@pytest.mark.parametrize("rate", [16_000, 22_050, 24_000, 44_100, 48_000, 192_000])
@pytest.mark.parametrize("gain", [0.2, 1.0])
def test_a_clean_recording_has_no_warning(rate: int, gain: float) -> None:
    assert codes(gain * resampled(rate), rate) == []


def test_a_clean_recording_in_figures() -> None:
    report = measure(clip(SPEECH))
    assert report.speech_seconds == pytest.approx(4.8, abs=0.1)
    assert report.leading_silence < 0.05 and report.trailing_silence == pytest.approx(0.33, abs=0.05)
    assert report.peak_dbfs == pytest.approx(20 * np.log10(np.abs(SPEECH).max()), abs=0.1)
    assert report.level_dbfs == pytest.approx(-20.2, abs=0.5)
    assert report.snr_db == 60.0 and report.clipped_share < 1e-4 and abs(report.dc_offset) < 1e-3
    assert speaking_rate(report, TEXT) == pytest.approx(5.0, abs=1.0)


@pytest.mark.parametrize("snr", [5, 10, 14, 20, 30])
@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_the_noise_is_measured_and_reported_when_it_is_loud(snr: int, rate: int) -> None:
    # White noise has only a part of its power below 8 kHz, where the speech is.
    share = min(1.0, 16_000 / rate)
    samples = with_noise(resampled(rate), snr + 10 * np.log10(share))
    report = measure(clip(samples, rate))
    assert report.snr_db == pytest.approx(snr, abs=2.0)
    assert codes(samples, rate) == (["noise"] if snr < 15 else [])


@pytest.mark.parametrize("gain", [1.0, 0.3])
@pytest.mark.parametrize("share", [0.002, 0.01, 0.05])
def test_clipped_samples_are_counted_though_the_clip_was_made_softer(share: float, gain: float) -> None:
    limit = np.quantile(np.abs(SPEECH), 1 - share)
    samples = np.clip(SPEECH, -limit, limit) * gain
    assert measure(clip(samples)).clipped_share == pytest.approx(share, rel=0.2)
    assert codes(samples) == ["clipping"]


def test_a_clip_at_full_scale_that_is_not_clipped_has_no_warning() -> None:
    assert codes(SPEECH / np.abs(SPEECH).max()) == []
    assert codes(np.tanh(3 * SPEECH)) == []  # a soft limiter makes no flat tops


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.0), (0.5, 0.5), (2.0, 0.0), (0.0, 3.0), (2.0, 3.0)])
@pytest.mark.parametrize("snr", [None, 25])
def test_silence_at_the_ends_is_measured_and_reported(before: float, after: float, snr: float | None) -> None:
    samples = padded(before, after) if snr is None else with_noise(padded(before, after), snr)
    report = measure(clip(samples))
    assert report.leading_silence == pytest.approx(before, abs=0.06)
    assert report.trailing_silence == pytest.approx(after + 0.33, abs=0.06)
    expected = [code for code, long in (("leading_silence", before > 1), ("trailing_silence", after > 1)) if long]
    assert codes(samples) == expected


def test_pauses_are_reported_where_little_is_left() -> None:
    samples = np.concatenate([SPEECH, np.zeros(8 * RATE), SPEECH[: RATE // 2]])
    assert codes(samples, text=None) == ["mostly_silence"]
    assert codes(SPEECH[: 2 * RATE], text=None) == ["little_speech"]


def test_quiet_and_off_centre() -> None:
    assert codes(0.05 * SPEECH) == ["quiet"]
    assert codes(0.5 * SPEECH + 0.05) == ["dc_offset"]


def test_a_telephone_is_recognised_by_its_sample_rate() -> None:
    assert codes(resampled(8_000), 8_000) == ["low_sample_rate"]


@pytest.mark.parametrize("level", [0.3, 0.003])
def test_noise_alone_is_no_speech(level: float) -> None:
    assert codes(level * noise(SPEECH)) == ["no_speech"]
    time = np.arange(4 * RATE) / RATE
    assert "no_speech" in codes(level * np.sin(2 * np.pi * 440 * time))
    report = measure(clip(level * noise(SPEECH)))
    assert report.speech_seconds == 0 and report.snr_db is None and report.level_dbfs is None
    assert speaking_rate(report, TEXT) is None


def test_several_faults_are_all_reported() -> None:
    limit = np.quantile(np.abs(SPEECH), 0.98)
    bad = np.concatenate([np.zeros(2 * RATE), np.clip(SPEECH, -limit, limit)])
    assert codes(bad, text=TEXT * 9) == ["clipping", "leading_silence", "transcript_too_long"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (TEXT, None),
        (TEXT * 2, None),  # not certain: somebody may speak so fast
        (TEXT * 4, "transcript_too_long"),
        ("The harbour", "transcript_too_short"),
        ("港" * 20, None),
        ("港" * 80, "transcript_too_long"),
        ("港口", "transcript_too_short"),
        ("...", "transcript_too_short"),
    ],
)
def test_the_transcript_is_held_against_the_length_of_the_speech(text: str, code: str | None) -> None:
    assert codes(SPEECH, text=text) == ([] if code is None else [code])


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("The harbour was quiet in the morning.", 9, 11),
        ("Die Fähre überquert den Fluss.", 8, 10),
        ("L'été, les bateaux reviennent à midi.", 10, 13),
        ("Гавань была тихой.", 6, 6),
        ("Καλημέρα κόσμε", 6, 6),
        ("早上的港口很安静。", 8, 8),
        ("おはようございます", 9, 9),
        ("きょうと", 3, 3),
        ("아침의 항구", 5, 5),
        ("صباح الخير يا صديقي", 6, 10),
        ("नमस्ते दुनिया", 3, 7),
        ("In 1984", 6, 8),
        ("", 0, 0),
        ("!? ...", 0, 0),
    ],
)
def test_syllables_of_many_scripts(text: str, least: float, most: float) -> None:
    assert least <= syllables(text) <= most


def test_messages_fit_together_into_one_error() -> None:
    report = ClipReport(2.0, 12.345, 12.345, -1.0, 0.1234, 0.1, -55.5, 3.2)
    warnings = warnings_of(report, 29.9, 8_000, TEXT * 40)
    assert len(warnings) == 9 and sum(len(each.code) + len(each.message) + 4 for each in warnings) < 900
    assert all(each.message.lstrip("`")[0].islower() or each.message[0].isdigit() for each in warnings)
    assert not any(each.message.endswith(".") for each in warnings)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([8_000, 16_000, 44_100]), st.floats(-44, 38))
def test_any_finite_clip_has_a_report_of_finite_numbers(seed: int, rate: int, power: float) -> None:
    random = np.random.default_rng(seed)
    samples = random.standard_normal(rate).clip(-3, 3) * random.integers(0, 2, rate) * 10.0**power
    report = measure(clip(samples.astype(np.float32), rate))
    text = json.dumps(report.to_json(), allow_nan=False)
    assert ClipReport.from_json(json.loads(text)) == report
    warnings_of(report, 1.0, rate, "Hello.")


def test_a_clip_of_zeros_has_a_report() -> None:
    report = measure(clip(np.zeros(RATE)))
    assert report.speech_seconds == 0 and report.leading_silence == 1.0


GOOD = measure(clip(SPEECH)).to_json()


@pytest.mark.parametrize(
    "values",
    [
        *([], {}, {"peak_dbfs": 1.0}),
        *(
            {**GOOD, "speech_seconds": value}
            for value in ("1", True, None, [], float("nan"), float("inf"), 1e10, -1e300)
        ),
    ],
)
def test_what_is_no_report_is_refused(values: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        ClipReport.from_json(values)


@settings(max_examples=100)
@given(st.lists(st.floats(-1e6, 1e6), min_size=len(GOOD), max_size=len(GOOD)))
def test_whatever_a_report_claims_its_figures_and_sentences_stay_small(figures: list[float]) -> None:
    report = ClipReport.from_json(dict(zip(GOOD, figures, strict=True)))
    warnings = warnings_of(report, figures[0], 16_000, TEXT)
    assert all(len(warning.message) < 200 for warning in warnings)
    json.dumps(speaking_rate(report, "a" * 4096), allow_nan=False)


# Trimming


@pytest.mark.parametrize("snr", [None, 30, 15])
def test_trimming_cuts_silence_but_no_speech(snr: float | None) -> None:
    samples = padded(2.0, 3.0) if snr is None else with_noise(padded(2.0, 3.0), snr)
    whole = clip(samples)
    trimmed, start, end = trim_silence(whole, ClipLimits())
    assert 1.5 <= start <= 1.9 and 2.5 <= end <= 3.0
    first, last = round(start * RATE), len(samples) - round(end * RATE)
    np.testing.assert_array_equal(trimmed.waveform, samples[first:last])  # to the bit
    spoken = np.flatnonzero(np.abs(padded(2.0, 3.0)) > 1e-3)
    assert first < spoken[0] - 0.1 * RATE and last > spoken[-1] + 0.3 * RATE


def test_the_file_of_a_trimmed_clip_has_its_samples() -> None:
    trimmed, _, _ = trim_silence(clip(padded(2.0, 3.0)), ClipLimits())
    again = decode(trimmed.encoded)
    np.testing.assert_array_equal(again.waveform, trimmed.waveform)
    assert (again.sample_rate, again.mime_type) == (RATE, "audio/wav") == (trimmed.sample_rate, trimmed.mime_type)
    read, rate = soundfile.read(io.BytesIO(trimmed.encoded), dtype="float32")  # as other programs read it
    np.testing.assert_array_equal(read, trimmed.waveform)
    assert rate == RATE


@pytest.mark.parametrize("samples", [SPEECH, 0.1 * noise(SPEECH), np.zeros(3 * RATE, np.float32)])
def test_without_silence_or_speech_the_clip_stays_as_it_is(samples: Samples) -> None:
    whole = clip(samples)
    assert trim_silence(whole, ClipLimits()) == (whole, 0.0, 0.0)


def test_what_remains_must_be_long_enough_and_fit() -> None:
    short = np.concatenate([np.zeros(3 * RATE), SPEECH[: RATE // 10], np.zeros(3 * RATE)])
    with pytest.raises(InvalidArgument, match=r"without the silence at its ends the audio is 0\.\d+ s long"):
        trim_silence(clip(short), ClipLimits())
    with pytest.raises(InvalidArgument, match="lower sample rate"):
        trim_silence(clip(padded(2.0, 3.0)), ClipLimits(max_bytes=100_000))


def test_encode_wav_is_exact_for_any_float() -> None:
    samples = np.array([0.1, -3.5, 1e-30, 99.9, 0.0] * 8_000, np.float32)
    np.testing.assert_array_equal(decode(encode_wav(samples, 16_000)).waveform, samples)
