"""What is spoken in measurements, and reference clips: the shipped one and any number of variants."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import soundfile

DATA = Path(__file__).resolve().parents[2] / "tools" / "data"
CLIP = DATA / "reference.wav"
TRANSCRIPT = (DATA / "reference.txt").read_text(encoding="utf-8").strip()
TEXT = "The boats lay still on the silver water, and no one said a word until the lamp went out."


def fresh_clip(seed: int, seconds: float | None = None) -> bytes:
    """The shipped clip as a WAV file, with inaudible noise that makes it another clip.

    Args:
        seed: of the noise; another seed is another clip to the cache.
        seconds: its length, by repeating or cutting it; None: unchanged.
    """
    samples, rate = soundfile.read(CLIP, dtype="float32")
    if seconds is not None:
        samples = np.resize(samples, round(seconds * rate))
    noise = np.random.default_rng(seed).standard_normal(len(samples), dtype=np.float32)
    file = io.BytesIO()
    soundfile.write(file, samples + 1e-3 * noise, rate, format="WAV", subtype="PCM_16")
    return file.getvalue()
