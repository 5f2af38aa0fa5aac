"""Voices that are added by the APIs of vendors: their names, and clips that are joined."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from voice_clone_client import InvalidArgument
from voice_clone_gateway.vendors.registering import MOST_SECONDS, joined, plain_name


def clip(seconds: float, rate: int = 16000, channels: int = 1) -> bytes:
    made = io.BytesIO()
    soundfile.write(made, np.full((int(seconds * rate), channels), 0.25), rate, format="WAV")
    return made.getvalue()


@pytest.mark.parametrize(
    ("text", "name"),
    [("Zoë (studio)!", "Zoë -studio--"), (" .hidden ", "hidden"), ("x" * 100, "x" * 64), ("...", "voice")],
)
def test_a_name_that_a_voice_may_have(text: str, name: str) -> None:
    assert plain_name(text) == name


def test_clips_are_joined_up_to_their_most() -> None:
    samples, rate = soundfile.read(io.BytesIO(joined([clip(2.0), clip(3.0, 48000, 2)])))
    assert rate == 16000 and len(samples) / rate == pytest.approx(5.6, abs=0.01)
    assert np.median(np.abs(samples)) == pytest.approx(0.25, abs=0.01)
    whole, rate = soundfile.read(io.BytesIO(joined([clip(20.0), clip(20.0)])))
    assert len(whole) / rate == pytest.approx(MOST_SECONDS, abs=0.31)


@pytest.mark.parametrize("strange", [clip(1.0, 384_000), clip(1.0, 16000, 6), b"no sound"])
def test_clips_that_are_not_joined(strange: bytes) -> None:
    with pytest.raises(InvalidArgument, match="file 2"):
        joined([clip(1.0), strange])
