"""Training that goes on from a checkpoint: its weights in place of random ones."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from tools.demo_voice.qwen3_tts.export import WEIGHTS
from voice_clone.families.qwen3_tts.config import CODEC_FOLDER


def begin(model: nn.Module, base: Path | None, part: str = "") -> None:
    """Give a model the weights of a checkpoint.

    Args:
        base: the checkpoint's folder; None: the model stays as it is.
        part: how the names of a part of the codec begin; without it, the weights are those of talker and speaker
            encoder, and what the checkpoint does not hold stays as it is.
    """
    if base is None:
        return
    found = load_file(base / CODEC_FOLDER / WEIGHTS if part else base / WEIGHTS)
    own = {name: found[part + name] for name in model.state_dict() if part + name in found}
    model.load_state_dict(own, strict=bool(part))
