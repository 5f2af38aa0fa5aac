"""tools/demo with random weights: a checkpoint is made, a voice registered, and the audio saved."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tools import demo

FRAMES = 8


def test_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "CACHE", tmp_path / "cache")
    output = tmp_path / "demo.wav"
    monkeypatch.setattr(
        sys, "argv", ["tools/demo", "--family", "qwen3_tts", "--max-frames", str(FRAMES), "-o", str(output)]
    )
    assert demo.main() == 0
    said = capsys.readouterr().out
    rows = re.findall(r"^(clip sent along, cold|first call|second call) +(\w+) +(\d+) ", said, re.MULTILINE)
    assert [label for label, _, _ in rows] == ["clip sent along, cold", "first call", "second call"]
    assert rows[0][1:] == ("miss", "1") and rows[2][1:] == ("hit", "0")
    assert f"({FRAMES} frames)" in said and "The weights are random" in said and f"To hear it: aplay {output} " in said
    samples, rate = soundfile.read(output)
    assert rate == 24000 and len(samples) == FRAMES * 1920 and np.std(samples) > 0.001
    assert "Traceback" not in (tmp_path / "cache" / "demo-server.log").read_text()
