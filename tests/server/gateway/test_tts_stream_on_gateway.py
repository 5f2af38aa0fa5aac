"""tools/tts-stream against the real gateway."""

from __future__ import annotations

import os
import subprocess
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile
from voice_clone_client import Client, pcm16

from perf.bench.gateway_process import Gateway

pytestmark = pytest.mark.share("servers")

TOOL = Path(__file__).parents[3] / "tools" / "tts-stream"
CLIP = Path(__file__).parents[3] / "tools" / "data" / "reference.wav"


def run(gateway: Gateway, *arguments: object) -> tuple[int, str]:
    """Exit code and stderr."""
    limits = ["--set", "seed=3", "--set", "max_new_tokens=20"]
    command = [TOOL, "--url", gateway.url, *limits, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_the_saved_files_hold_the_speech(gateway: Gateway, client: Client, voice: str, tmp_path: Path) -> None:
    samples, _ = client.speak("Good morning.", voice=voice, seed=3, max_frames=20).read()
    assert run(gateway, "--voice", voice, "-o", tmp_path / "a.wav", "Good morning.") == (0, "")
    with wave.open(str(tmp_path / "a.wav")) as saved:
        assert saved.getframerate() == 24000
        pcm = np.frombuffer(saved.readframes(saved.getnframes()), "<i2")
    np.testing.assert_allclose(pcm, np.frombuffer(pcm16(samples), "<i2"), atol=1)  # rounding
    for name in ("flac", "mp3"):
        assert run(gateway, "--voice", voice, "-o", tmp_path / f"a.{name}", "Good morning.") == (0, "")
        assert soundfile.info(tmp_path / f"a.{name}").duration > 0.9 * len(samples) / 24000
    assert run(
        gateway, "--reference", CLIP, "--set", "allow_partial=true", "-o", tmp_path / "b.wav", "Good morning."
    ) == (0, "")


def test_the_server_s_refusal_is_printed(gateway: Gateway, voice: str, tmp_path: Path) -> None:
    code, stderr = run(gateway, "--voice", "nobody", "-o", tmp_path / "a.wav", "Good morning.")
    assert code == 1 and stderr.startswith("tts-stream: no voice is registered under the name 'nobody'; ")
    assert stderr.endswith(" (HTTP 404)\n") and stderr.count("\n") == 1
    code, stderr = run(gateway, "--voice", voice, "--set", "sped=2", "-o", tmp_path / "a.wav", "Good morning.")
    assert code == 1 and "did you mean speed?" in stderr
    assert not (tmp_path / "a.wav").exists()
