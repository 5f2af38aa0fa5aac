"""Quick checks of a checkpoint folder, for tools: a server would fail on it only after a while. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from voice_clone.checkpoint_folder import check_converted, check_file, check_weights
from voice_clone.families.voxcpm2.audio_vae_config import AUDIO_VAE, load_audio_vae_config
from voice_clone.families.voxcpm2.config import MODEL, load_config
from voice_clone.families.voxcpm2.text import TOKENIZER_FILE


def check(checkpoint: Path) -> None:
    """Check that the configuration is one that can be served, and that all files are there and whole.

    Raises:
        CheckpointError: something is wrong; the text says what.
    """
    load_config(checkpoint)
    load_audio_vae_config(checkpoint)
    check_file(checkpoint, TOKENIZER_FILE)
    check_converted(checkpoint, AUDIO_VAE, f"{AUDIO_VAE}.pth")
    for name in (MODEL, AUDIO_VAE):
        check_weights(checkpoint, name)
