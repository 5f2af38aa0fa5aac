"""Quick checks of a checkpoint folder, for tools: a server would fail on it only after a while. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from voice_clone.checkpoint_folder import check_converted, check_file, check_weights
from voice_clone.families.voxtral.config import MODEL, VOICE_FOLDER, VOICES, load_config
from voice_clone.families.voxtral.text import TOKENIZER_FILE


def check(checkpoint: Path) -> None:
    """Check that the configuration is one that can be served, and that all files are there and whole.

    Raises:
        CheckpointError: something is wrong; the text says what.
    """
    config = load_config(checkpoint)
    check_file(checkpoint, TOKENIZER_FILE)
    check_weights(checkpoint, MODEL)
    if config.presets:
        check_converted(checkpoint, VOICES, VOICE_FOLDER)
        check_weights(checkpoint, VOICES)
