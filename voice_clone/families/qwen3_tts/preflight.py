"""Quick checks of a checkpoint folder, for tools: a server would fail on it only after a while. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from voice_clone.checkpoint_folder import check_file, check_weights, same_bytes
from voice_clone.errors import CheckpointError
from voice_clone.families.qwen3_tts.config import CODEC_FOLDER, load_config
from voice_clone.families.qwen3_tts.text import MERGES_FILE, SETTINGS_FILE, TOKENIZER_FILE, VOCABULARY_FILE


def check(checkpoint: Path) -> None:
    """Check that the configuration is one that can be served, and that all files are there and whole.

    Raises:
        CheckpointError: something is wrong; the text says what.
    """
    load_config(checkpoint)
    if not (checkpoint / TOKENIZER_FILE).is_file():
        for name in (VOCABULARY_FILE, MERGES_FILE, SETTINGS_FILE):
            check_file(checkpoint, name)
    for file in ("model", f"{CODEC_FOLDER}/model"):
        check_weights(checkpoint, file)


def check_shared(checkpoint: Path, other: Path) -> None:
    """Check that the decoder of one checkpoint serves the frames of the other.

    Raises:
        CheckpointError: it does not.
    """
    if load_config(checkpoint).codec.decoder_config != load_config(other).codec.decoder_config or not same_bytes(
        checkpoint / f"{CODEC_FOLDER}/model.safetensors", other / f"{CODEC_FOLDER}/model.safetensors"
    ):
        raise CheckpointError(
            f"{CODEC_FOLDER}: the kinds of Qwen3-TTS share one decoder, and theirs differ; take one release"
        )
