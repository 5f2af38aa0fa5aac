"""The mark is found in what was marked, also played faster or in part, and in nothing else."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from voice_clone.audio import resample
from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.marking import weights
from voice_clone.marking.detection import PIECE, PerthDetector, likeliest
from voice_clone.marking.marker import PerthMarker
from voice_clone.marking.network import RATE
from voice_clone_server.demo import CLIP

pytestmark = pytest.mark.thorough

Samples = NDArray[np.float32]
CLIPS = [CLIP, CLIP.with_name("rms.wav"), CLIP.parent.parent / "reference.wav"]


@pytest.fixture(scope="module")
def detector() -> PerthDetector:
    return PerthDetector()


def read(path: Path, rate: int = 24_000) -> Samples:
    samples, own = soundfile.read(path, dtype="float32")
    return resample(samples, own, rate)


def marked(samples: Samples, rate: int = 24_000) -> Samples:
    marker = PerthMarker(rate)
    return marker.mark([marker.open()], [samples])[0]


@pytest.mark.parametrize("rate", [24_000, 44_100, 48_000])
@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: clip.stem)
def test_marked_and_unmarked(detector: PerthDetector, clip: Path, rate: int) -> None:
    speech = read(clip, rate)
    found = detector.detect(marked(speech, rate), rate)
    assert found.marked and found.confidence > 0.9 and found.speed == 1.0
    other = detector.detect(speech, rate)
    assert not other.marked and other.confidence < 0.1


@pytest.mark.parametrize("speed", [0.95, 1.05])
def test_a_speech_at_another_speed(detector: PerthDetector, speed: float) -> None:
    speech = read(CLIP)
    found = detector.detect(resample(marked(speech), round(24_000 * speed), 24_000), 24_000)
    assert found.marked and abs(found.speed - speed) < 0.015
    assert not detector.detect(resample(speech, round(24_000 * speed), 24_000), 24_000).marked


def test_a_marked_piece_of_a_long_sound(detector: PerthDetector) -> None:
    speech = read(CLIP)
    long = np.tile(speech, 16)
    start = 10 * len(speech)
    long[start:] = marked(long[start:])
    found = detector.detect(long, 24_000)
    assert found.marked and found.start >= 30.0 and found.seconds < 1.5 * PIECE


@pytest.mark.parametrize("seconds", [3.0, 70.0, 200.0])
def test_pieces_are_those_of_the_whole_sound(detector: PerthDetector, seconds: float) -> None:
    """Also of one that waits on the disk between them."""
    speech = np.resize(read(CLIP), int(seconds * 24_000))
    sound = resample(speech, 24_000, RATE)
    borders = np.linspace(0, len(sound), max(1, round(seconds / PIECE)) + 1).astype(int)
    expected = [replace(detector.detect(sound[a:b], RATE), start=a / RATE) for a, b in itertools.pairwise(borders)]
    assert list(detector.pieces(speech, 24_000)) == expected and likeliest(expected) == detector.detect(speech, 24_000)


def test_silence_and_short_sounds(detector: PerthDetector) -> None:
    silent = detector.detect(np.zeros(24_000, np.float32), 24_000)
    assert not silent.marked and silent.confidence == 0.0
    assert not detector.detect(0.1 * np.ones(2_400, np.float32), 24_000).marked
    with pytest.raises(InvalidArgument, match=r"0\.1 s or more"):
        detector.detect(np.zeros(1_000, np.float32), 24_000)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PACKAGE", "no-such-package")
    with pytest.raises(Unsupported, match="pip install resemble-perth"):
        PerthDetector()


def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_SHA256", "0" * 64)
    with pytest.raises(Unsupported, match=r"not those of version 1\.0\.1"):
        PerthMarker(24_000)
