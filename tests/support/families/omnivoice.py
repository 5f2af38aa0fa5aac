"""Small checkpoints of OmniVoice."""

from __future__ import annotations

from pathlib import Path

from tools.families.omnivoice.checkpoint_maker import write_checkpoint


def make_omnivoice(folder: Path, shape: str = "tiny", seed: int = 0) -> Path:
    """A checkpoint in a new folder."""
    folder.mkdir(parents=True)
    write_checkpoint(shape, seed, folder)
    return folder
