"""codec.pth of a checkpoint, a pickle, to codec.safetensors, once. It runs nothing that it finds.

The codec's sizes are read from a few tensors, and then the names and shapes of all must be exactly those of such a
codec. Rotary tables and masks are dropped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from voice_clone.families.fish_speech.checkpoint import Checkpoint
from voice_clone.families.fish_speech.codec_decoder import CodecDecoder
from voice_clone.families.fish_speech.config import CODEC, CodecConfig, codec_config
from voice_clone.families.fish_speech.encoder import CodecEncoder
from voice_clone.families.fish_speech.family import CARD
from voice_clone_server.families.pickles import Shapes, check_shapes, load_pickle, save_tensors, tensors_by_name

_TABLES = (".freqs_cis", ".causal_mask")
_SPELLINGS = {".parametrizations.weight.original0": ".weight_g", ".parametrizations.weight.original1": ".weight_v"}
_WRAPPERS = ("generator", "state_dict")

CODEC_PICKLE = CARD.weights[1].pickles


def convert(checkpoint: Path) -> list[Path]:
    """Write codec.safetensors beside codec.pth; an earlier one is replaced.

    Raises:
        CheckpointError: the file is missing or refused, or the new one cannot be written; one line says why.
    """
    opened = Checkpoint(checkpoint)
    tensors = tensors_by_name(_unwrapped(load_pickle(checkpoint, CODEC_PICKLE)), CODEC_PICKLE, _our_name)
    codec = codec_config({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    check_shapes(tensors, codec_shapes(opened, codec), CODEC_PICKLE, "no codec of this family")
    return [save_tensors(checkpoint / f"{CODEC}.safetensors", tensors, checkpoint / CODEC_PICKLE)]


def _unwrapped(loaded: Any) -> Any:
    """The dictionary of tensors, which may lie in another."""
    if isinstance(loaded, dict) and len(loaded) <= len(_WRAPPERS):
        return next((loaded[key] for key in _WRAPPERS if isinstance(loaded.get(key), dict)), loaded)
    return loaded


def _our_name(official: str) -> str | None:
    """The name under one spelling; None: it is a table."""
    if official.endswith(_TABLES):
        return None
    for spelling, ours in _SPELLINGS.items():
        if official.endswith(spelling):
            return official.removesuffix(spelling) + ours
    return official


def codec_shapes(checkpoint: Checkpoint, codec: CodecConfig) -> Shapes:
    """Names and shapes of the codec's tensors, weight norm spelled `weight_g`, `weight_v`."""
    with torch.device("meta"):
        return checkpoint.sources(CodecEncoder(codec)) | checkpoint.sources(CodecDecoder(codec))
