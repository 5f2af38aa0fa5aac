"""Reference clips for measurements: the one that the tools ship, and as many others as are wanted."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import soundfile

DATA = Path(__file__).resolve().parent.parent / "tools" / "data"
CLIP = DATA / "reference.wav"
TRANSCRIPT = (DATA / "reference.txt").read_text(encoding="utf-8").strip()


def fresh_clip(seed: int, seconds: float | None = None) -> bytes:
    """The shipped clip as a WAV file, with noise far below hearing that makes it a clip of its own.

    Args:
        seed: of the noise; another seed is another clip to the cache.
        seconds: its length, by repetition or by cutting; None: as it is.
    """
    samples, rate = soundfile.read(CLIP, dtype="float32")
    if seconds is not None:
        samples = np.resize(samples, round(seconds * rate))
    noise = np.random.default_rng(seed).standard_normal(len(samples), dtype=np.float32)
    file = io.BytesIO()
    soundfile.write(file, samples + 1e-3 * noise, rate, format="WAV", subtype="PCM_16")
    return file.getvalue()
