"""Small checkpoints of Voxtral TTS in two shapes, and our networks with their weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from tests.support.families.in_torch import InTorch
from tools.families.voxtral.checkpoint_config import SHAPES, Shape
from tools.families.voxtral.checkpoint_maker import write_checkpoint
from voice_clone.autoregressive.native_parts import NativeParts
from voice_clone.families.voxtral.checkpoint import BACKBONE, CODEC, FLOW, TABLES, Checkpoint
from voice_clone.families.voxtral.codec import VoxtralDecoder
from voice_clone.families.voxtral.codec_networks import CodecDecoder, CodecEncoder
from voice_clone.families.voxtral.config import MODEL
from voice_clone.families.voxtral.prompt import NO_PRESET, Prompt, Tokenizer
from voice_clone.families.voxtral.talker import Talker, VoxtralTalker, native_talker
from voice_clone.families.voxtral.talker_network import TalkerNetwork
from voice_clone.native.packed_file import NOWHERE
from voice_clone.stages.loading import name_in_file

TINY = SHAPES["tiny"]
ODD = replace(  # other ratios of heads, widths that fill no vector, more layers
    TINY,
    dim=72,
    hidden_dim=100,
    layers=3,
    flow_layers=3,
    heads=6,
    kv_heads=3,
    head_dim=10,
    codec=replace(
        TINY.codec,
        dim=36,
        hidden_dim=50,
        head_dim=6,
        n_heads=6,
        n_kv_heads=6,
        encoder_transformer_lengths_str="1,2,1,1",
        decoder_transformer_lengths_str="2,1,1,2",
    ),
)
VOXTRAL_SHAPES: dict[str, Shape] = {"tiny": TINY, "odd": ODD, "presets": SHAPES["tiny-presets"]}


def make_voxtral(folder: Path, shape: str = "presets", seed: int = 0, dtype: str = "fp32") -> Path:
    """A checkpoint in a new folder; that of `presets` has no encoder."""
    folder.mkdir(parents=True)
    write_checkpoint(VOXTRAL_SHAPES[shape], seed, folder, dtype, 1)
    return folder


def load_voxtral_network(checkpoint: Checkpoint) -> TalkerNetwork:
    """Our talker's networks in fp32, on the CPU, in torch."""
    with torch.device("meta"):
        network = TalkerNetwork(checkpoint.config)
    for module, prefix in ((network.backbone, BACKBONE), (network.tables, TABLES), (network.flow, FLOW)):
        checkpoint.load(module, MODEL, prefix, torch.float32, "cpu")
    return network.eval().requires_grad_(False)


def load_voxtral_talker(checkpoint: Checkpoint, native: bool = False) -> Talker:
    """Our talker in fp32, on the CPU."""
    if native:
        read, tokenizer = checkpoint.reader(MODEL), Tokenizer(checkpoint.folder, checkpoint.config)
        parts = NativeParts("fp32", lambda name, shape: read(name_in_file(VoxtralTalker.places, name), shape))
        talker = native_talker(checkpoint.config, tokenizer, parts)
    else:
        talker = load_voxtral_network(checkpoint).talker()
    talker.set_voices(checkpoint.voices())
    return talker


def load_voxtral_codec(checkpoint: Checkpoint) -> tuple[CodecEncoder | None, CodecDecoder]:
    """Our codec in fp32, on the CPU."""
    with torch.device("meta"):
        encoder = CodecEncoder(checkpoint.config.codec) if checkpoint.has_encoder else None
        decoder = CodecDecoder(checkpoint.config.codec)
    for module in (encoder, decoder):
        if module is not None:
            checkpoint.load(module, MODEL, CODEC, torch.float32, "cpu")
            module.eval().requires_grad_(False)
    return encoder, decoder


def load_native_decoder(checkpoint: Checkpoint) -> InTorch:
    """Our codec's decoder as native code."""
    network = VoxtralDecoder.network(checkpoint.folder)
    assert network.native is not None
    return InTorch(network.native(network.empty, NOWHERE))


def preset_prompt(checkpoint: Checkpoint, name: str, text: str) -> Prompt:
    """A prompt in one of the checkpoint's own voices."""
    tokenizer, config = Tokenizer(checkpoint.folder, checkpoint.config), checkpoint.config
    preset = np.array([config.presets.index(name)], np.int32)
    return Prompt(tokenizer.before_voice, tokenizer.text_ids(text), preset, np.zeros((0, config.codebooks), np.uint16))


def clip_prompt(checkpoint: Checkpoint, frames: int, text: str, seed: int = 0) -> Prompt:
    """A prompt with some frames of a clip, and its end."""
    tokenizer, limits = Tokenizer(checkpoint.folder, checkpoint.config), np.array(checkpoint.config.id_limits)
    ids = np.random.default_rng(seed).integers(2, limits, (frames + 1, len(limits))).astype(np.uint16)
    ids[-1] = [1, *[0] * (len(limits) - 1)]
    return Prompt(tokenizer.before_voice, tokenizer.text_ids(text), np.array([NO_PRESET], np.int32), ids)
