"""Small checkpoints of VoxCPM2, whole, and voices for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tools.families.voxcpm2.checkpoint_maker import write_checkpoint
from voice_clone.families.voxcpm2.audio_vae_config import PROMPT_LATENTS, REFERENCE_LATENTS, WIDTH
from voice_clone.speech import ResolvedVoice


def make_voxcpm2(folder: Path, shape: str = "tiny", seed: int = 0, dtype: str = "fp32") -> Path:
    """A checkpoint in a new folder."""
    folder.mkdir(parents=True)
    write_checkpoint(shape, seed, folder, dtype, 1)
    return folder


def some_voice(frames: int, transcript: str | None = None, seed: int = 0) -> ResolvedVoice:
    """Latents of noise; those of a prompt with a transcript alone."""
    rng = np.random.default_rng(seed)
    reference, prompt = (rng.standard_normal((frames, WIDTH), np.float32) for _ in range(2))
    if transcript is None:
        prompt = prompt[:0]
    artifacts = {REFERENCE_LATENTS: reference, PROMPT_LATENTS: prompt}
    return ResolvedVoice(artifacts, transcript, "reference" if transcript is None else "icl")
