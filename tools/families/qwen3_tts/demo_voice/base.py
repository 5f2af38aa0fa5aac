"""Training that goes on from a checkpoint: its codebooks and weights in place of fitted and random ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from tools.families.qwen3_tts.demo_voice.analysis import BOOKS, Analysis
from tools.families.qwen3_tts.demo_voice.export import WEIGHTS
from tools.families.qwen3_tts.demo_voice.shape import codec_shape
from voice_clone.families.qwen3_tts.config import CODEC_FOLDER
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder


@torch.no_grad()
def with_books_of(analysis: Analysis, base: Path) -> Analysis:
    """The analysis with the codebooks of a checkpoint.

    The same sentences give the same spaces on every machine, but not the same clusters in them, which are what the
    codes mean.
    """
    encoder = CodecEncoder(codec_shape().encoder_config, BOOKS)
    begin(encoder, base, "encoder.")
    quantizer = encoder.quantizer
    [phones] = quantizer.semantic_residual_vector_quantizer.codebooks
    books = [codebook.vectors for codebook in quantizer.acoustic_residual_vector_quantizer.codebooks]
    size = analysis.phone_book.shape[1]
    return replace(analysis, phone_book=phones.vectors[:, :size].contiguous(), books=torch.stack(books))


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
