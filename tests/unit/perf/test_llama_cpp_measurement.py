"""What is read off a speech of llama.cpp, which itself is not built here."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from perf.compare_llama_cpp import same_frames, watch
from perf.llama_cpp import Times, parse

OUTPUT = """\
ready at 1234.500000s
frames generated: 12, speed: 3.10 frames/s
generated 24 frames, 92204 bytes of WAV audio (24000 Hz)
timings: prompt eval 0.250000s + generation 7.500000s + vocoder 3.125000s = total 10.875000s
         output audio = 1.92s (audio time = 0.18x process time)
"""


def test_times_of_a_speech() -> None:
    assert parse(OUTPUT) == Times(ready=1234.5, prompt=0.25, frames=7.5, decoder=3.125)


@pytest.mark.parametrize("missing", ["ready", "timings"])
def test_an_output_without_times_is_told(missing: str) -> None:
    rest = "\n".join(line for line in OUTPUT.splitlines() if not line.startswith(missing))
    with pytest.raises(ValueError, match="told no times"):
        parse(rest)


def test_frames_are_the_same_until_one_differs(tmp_path: Path) -> None:
    ours = np.random.default_rng(0).uniform(-0.5, 0.5, (4, 1920))
    theirs = ours + 1e-4
    theirs[2] = ours[1]  # and the frame after it is the same again
    for name, samples in (("ours", ours), ("theirs", theirs)):
        soundfile.write(tmp_path / f"{name}.wav", samples.reshape(-1), 24_000)
    assert same_frames(tmp_path / "ours.wav", tmp_path / "theirs.wav", 4) == 2
    assert same_frames(tmp_path / "ours.wav", tmp_path / "ours.wav", 4) == 4


def test_a_process_is_watched() -> None:
    before = time.monotonic()
    began, said, megabytes = watch(
        [sys.executable, "-c", "import time; b = b'1' * 300_000_000; print('done'); time.sleep(0.2)"]
    )
    assert before <= began <= time.monotonic() and said == "done\n"
    assert megabytes > 300
