"""Quick checks of a checkpoint folder, for tools: a server would fail on it only after a while. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from voice_clone.checkpoint_folder import check_weights
from voice_clone.families.omnivoice import codec_config
from voice_clone.families.omnivoice.config import MODEL, load_config
from voice_clone.families.omnivoice.text import Tokenizer


def check(checkpoint: Path) -> None:
    """Check that the configuration is one that can be served, and that all files are there and whole.

    Raises:
        CheckpointError: something is wrong; the text says what.
    """
    Tokenizer(checkpoint, load_config(checkpoint))
    codec_config.load_codec_config(checkpoint)
    for name in (MODEL, codec_config.MODEL):
        check_weights(checkpoint, name)
