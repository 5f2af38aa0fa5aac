"""tools/demo with random weights: a checkpoint is made, a voice registered, and the audio saved."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.support.families.voxtral import make_voxtral
from tools.demo import main
from voice_clone.families.voxtral.config import NO_ENCODER
from voice_clone_server import demo

FRAMES = 8


def test_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "demo.wav"
    monkeypatch.setattr(
        sys, "argv", ["tools/demo", "--family", "qwen3_tts", "--max-frames", str(FRAMES), "-o", str(output)]
    )
    assert main(tmp_path / "cache") == 0
    said = capsys.readouterr().out
    rows = re.findall(r"^(clip sent along, cold|first call|second call) +(\w+) +(\d+) ", said, re.MULTILINE)
    assert [label for label, _, _ in rows] == ["clip sent along, cold", "first call", "second call"]
    assert rows[0][1:] == ("miss", "1") and rows[2][1:] == ("hit", "0")
    assert f"({FRAMES} frames)" in said and "The weights are random" in said and f"To hear it: aplay {output} " in said
    samples, rate = soundfile.read(output)
    assert rate == 24000 and len(samples) == FRAMES * 1920 and np.std(samples) > 0.001
    assert "Traceback" not in (tmp_path / "cache" / "demo-server.log").read_text()


@pytest.mark.thorough
def test_a_checkpoint_that_cannot_clone_speaks_in_a_voice_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, output = str(make_voxtral(tmp_path / "checkpoint")), tmp_path / "demo.wav"
    words = ["tools/demo", "--checkpoint", checkpoint, "--max-frames", str(FRAMES), "-o", str(output)]
    for given, code in (([], 0), ([], 0), (["--reference", str(demo.CLIP)], 1)):
        monkeypatch.setattr(sys, "argv", words + given)
        assert main(tmp_path / "cache") == code
        said = capsys.readouterr()
        assert NO_ENCODER in (said.err if code else said.out)
        if not code:
            assert re.findall(r"^(first call|second call) +preset +0 ", said.out, re.MULTILINE) == [
                "first call",
                "second call",
            ]
            samples, rate = soundfile.read(output)
            assert rate == 24000 and len(samples) == FRAMES * 1920 and np.std(samples) > 0.001


@pytest.mark.parametrize(
    ("words", "frames"),
    [([], None), (["--max-frames", "5"], 5), (["--family", "qwen3_tts"], demo.RANDOM_FRAMES)],
)
def test_a_text_is_cut_only_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, words: list[str], frames: int | None
) -> None:
    """But random weights hardly ever end."""
    given: list[int | None] = []
    monkeypatch.setattr(demo, "_run", lambda arguments, *clip: given.append(arguments.max_frames) or 0)
    monkeypatch.setattr(sys, "argv", ["tools/demo", *words])
    assert main() == 0 and given == [frames]


def test_a_speech_without_its_end_is_reported() -> None:
    spoken = demo.Spoken("second call", 1920, 24000, 1.0, 1.0, 0, {"frames": 1}, "stop")
    assert demo.ending_of(spoken, None) is None
    assert "--max-frames" in str(demo.ending_of(replace(spoken, finish_reason="length"), 96))
    assert "missed the end" in str(demo.ending_of(replace(spoken, finish_reason="runaway"), None))
