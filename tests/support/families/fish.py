"""Small checkpoints of Fish Speech in two shapes, and our talker with their weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from tools.families.fish_speech.checkpoint_config import SHAPES, Shape
from tools.families.fish_speech.checkpoint_maker import write_checkpoint
from voice_clone.autoregressive.native_parts import NativeParts
from voice_clone.families.fish_speech.checkpoint import FAST, SLOW, Checkpoint
from voice_clone.families.fish_speech.config import MODEL
from voice_clone.families.fish_speech.prompt import Tokenizer
from voice_clone.families.fish_speech.talker import PARTS, Talker, native_talker
from voice_clone.families.fish_speech.talker_network import TalkerNetwork
from voice_clone.settings import Precision
from voice_clone.stages.loading import name_in_file

TINY = SHAPES["tiny"]
ODD = dataclasses.replace(  # other ratios of heads, widths that fill no vector, more layers
    TINY,
    dim=72,
    intermediate_size=100,
    layers=3,
    fast_layers=2,
    heads=6,
    kv_heads=2,
    head_dim=12,
    codec=dataclasses.replace(
        TINY.codec,
        encoder_dim=4,
        decoder_dim=80,
        encoder_layers=2,
        encoder_intermediate=192,
        quantizer_layers=3,
        quantizer_intermediate=100,
    ),
)
FISH_SHAPES: dict[str, Shape] = {"tiny": TINY, "odd": ODD}


def make_fish(folder: Path, shape: str = "tiny", seed: int = 0, dtype: str = "fp32") -> Path:
    """A checkpoint in a new folder."""
    folder.mkdir(parents=True)
    write_checkpoint(FISH_SHAPES[shape], seed, folder, dtype, 1)
    return folder


def load_fish_network(checkpoint: Checkpoint) -> TalkerNetwork:
    """Our talker's networks in fp32, on the CPU, in torch."""
    tokenizer = Tokenizer(checkpoint.folder, checkpoint.config)
    with torch.device("meta"):
        network = TalkerNetwork(checkpoint.config, tokenizer.end_token)
    checkpoint.load(network.slow, MODEL, SLOW, torch.float32, "cpu")
    checkpoint.load(network.fast, MODEL, FAST, torch.float32, "cpu")
    return network.eval().requires_grad_(False)


def load_fish_talker(checkpoint: Checkpoint, precision: Precision | None = None) -> Talker:
    """Our talker on the CPU, in native code; None: in torch, in fp32."""
    if precision is None:
        return load_fish_network(checkpoint).talker()
    read, tokenizer = checkpoint.reader(MODEL), Tokenizer(checkpoint.folder, checkpoint.config)
    parts = NativeParts(precision, lambda name, shape: read(name_in_file(PARTS, name), shape))
    return native_talker(checkpoint.config, tokenizer, parts)
