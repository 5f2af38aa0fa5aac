"""Quick checks of a checkpoint folder, for tools: a server would fail on it only after a while. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from voice_clone.checkpoint_folder import check_converted, check_weights
from voice_clone.families.fish_speech.config import CODEC, CODEC_PICKLE, MODEL, load_config
from voice_clone.families.fish_speech.text import Tokenizer


def check(checkpoint: Path) -> None:
    """Check that the configuration is one that can be served, and that all files are there and whole.

    Raises:
        CheckpointError: something is wrong; the text says what.
    """
    Tokenizer(checkpoint, load_config(checkpoint))
    check_converted(checkpoint, CODEC, CODEC_PICKLE)
    for name in (MODEL, CODEC):
        check_weights(checkpoint, name)
