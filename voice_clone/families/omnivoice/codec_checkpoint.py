"""The codec's weights, `audio_tokenizer/`, in the names of its networks."""

from __future__ import annotations

import torch
from torch import Tensor

from voice_clone.checkpoint import CheckpointFiles, Source
from voice_clone.families.omnivoice.codec_config import CodecConfig, load_codec_config

_POSITIONS = "semantic_model.encoder.pos_conv_embed.conv"


class CodecCheckpoint(CheckpointFiles):
    """The codec in a checkpoint folder."""

    config: CodecConfig
    load_config = staticmethod(load_codec_config)

    def source(self, name: str, shape: tuple[int, ...]) -> Source:
        """As of `CheckpointFiles`; HuBERT's wide convolution is weight-normed for each place of its kernel."""
        if name != f"{_POSITIONS}.weight":
            return super().source(name, shape)
        parts = f"{_POSITIONS}.parametrizations.weight.original"
        return Source({f"{parts}0": (1, 1, shape[2]), f"{parts}1": shape}, _fold)


def _fold(length: Tensor, direction: Tensor) -> Tensor:
    """Of each place of the kernel its length [1, 1, K] and its direction [O, I, K] (Salimans & Kingma 2016)."""
    direction = direction.float()
    norms = torch.linalg.vector_norm(direction, dim=(0, 1), keepdim=True)
    weight: Tensor = direction * (length.float() / norms)
    return weight
