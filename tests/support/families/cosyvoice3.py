"""Small checkpoints of CosyVoice3, and a folder with the voice encoder alone."""

from __future__ import annotations

from pathlib import Path

from tools.families.cosyvoice3.checkpoint_maker import write_checkpoint
from tools.families.cosyvoice3.encoders import make_encoders
from voice_clone.families.cosyvoice3.config import MARK


def make_cosyvoice3(folder: Path, shape: str = "tiny", seed: int = 0, dtype: str = "fp32") -> Path:
    """A checkpoint in a new folder."""
    folder.mkdir(parents=True)
    write_checkpoint(shape, seed, folder, dtype)
    return folder


def make_voice_encoder(folder: Path, shape: str = "tiny", seed: int = 0) -> Path:
    """What the voice encoder reads of a checkpoint, in a new folder."""
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    make_encoders(shape, seed, folder)
    return folder
