"""Quick checks of a checkpoint folder, for tools: a server would fail on it only after a while. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from voice_clone.checkpoint_folder import check_converted, check_file, check_graph, check_weights
from voice_clone.families.cosyvoice3.config import (
    BLANK,
    FLOW,
    HIFT,
    LLM,
    SPEAKER_ENCODER,
    TOKENIZER,
    load_config,
)


def check(checkpoint: Path) -> None:
    """Check that the configuration is one that can be served, and that all files are there and whole.

    Raises:
        CheckpointError: something is wrong; the text says what.
    """
    load_config(checkpoint)
    for name in (f"{BLANK}/vocab.json", f"{BLANK}/merges.txt"):
        check_file(checkpoint, name)
    for name in (LLM, FLOW, HIFT):
        check_converted(checkpoint, name, f"{name}.pt")
        check_weights(checkpoint, name)
    for name in (TOKENIZER, SPEAKER_ENCODER):
        check_graph(checkpoint, f"{name}.onnx")
