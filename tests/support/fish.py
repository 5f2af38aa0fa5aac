"""Small checkpoints of Fish Speech in two shapes, and the official networks with their weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from tools.families.fish_speech.checkpoint_config import SHAPES, Shape
from tools.families.fish_speech.checkpoint_maker import write_checkpoint
from voice_clone.families.fish_speech.checkpoint import CODEC, FAST, MODEL, SLOW, Checkpoint
from voice_clone.families.fish_speech.networks.codec_decoder import CodecDecoder
from voice_clone.families.fish_speech.networks.codec_encoder import CodecEncoder
from voice_clone.families.fish_speech.networks.talker import Talker
from voice_clone.families.fish_speech.prompt import Prompt
from voice_clone.families.fish_speech.text import Tokenizer

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


def load_codec(checkpoint: Checkpoint) -> tuple[CodecEncoder, CodecDecoder]:
    """Our codec in fp32, on the CPU, in torch."""
    with torch.device("meta"):
        encoder, decoder = CodecEncoder(checkpoint.codec), CodecDecoder(checkpoint.codec)
    for module in (encoder, decoder):
        checkpoint.load(module, CODEC, "", torch.float32, "cpu")
        module.eval().requires_grad_(False)
    return encoder, decoder


def load_fish_talker(checkpoint: Checkpoint) -> Talker:
    """Our talker in fp32, on the CPU, in torch."""
    tokenizer = Tokenizer(checkpoint.folder, checkpoint.config)
    with torch.device("meta"):
        talker = Talker(checkpoint.config, tokenizer.end_token)
    checkpoint.load(talker.slow, MODEL, SLOW, torch.float32, "cpu")
    checkpoint.load(talker.fast, MODEL, FAST, torch.float32, "cpu")
    return talker.eval().requires_grad_(False)


def fill_official_codec(codec: nn.Module, checkpoint: Checkpoint) -> None:
    """Give an official codec the weights of a checkpoint, from its codec.pth."""
    tensors = torch.load(checkpoint.folder / f"{CODEC}.pth", weights_only=True)
    tables = {name for name in tensors if name.endswith(("freqs_cis", "causal_mask"))}
    result = codec.load_state_dict({n: t for n, t in tensors.items() if n not in tables}, strict=False)
    assert not result.unexpected_keys and set(result.missing_keys) == tables


def official_sizes(checkpoint: Checkpoint) -> dict[str, Any]:
    """The arguments of `DualARModelArgs` for a checkpoint."""
    config = checkpoint.config
    slow, fast = config.text_config, config.audio_decoder_config
    return {
        "vocab_size": slow.vocab_size,
        "n_layer": slow.n_layer,
        "n_head": slow.n_head,
        "dim": slow.dim,
        "intermediate_size": slow.intermediate_size,
        "n_local_heads": slow.kv_heads,
        "head_dim": slow.head_size,
        "rope_base": slow.rope_base,
        "norm_eps": slow.norm_eps,
        "attention_qk_norm": slow.attention_qk_norm,
        "max_seq_len": 512,
        "codebook_size": config.semantic_codes,
        "num_codebooks": config.codebooks,
        "n_fast_layer": fast.n_layer,
        "fast_attention_qk_norm": fast.attention_qk_norm,
    }


def fill_official_transformer(model: nn.Module, folder: Path) -> None:
    """Give the official transformers the weights of a checkpoint, under the names that the official code reads."""
    tensors = {}
    for name, tensor in load_file(folder / f"{MODEL}.safetensors").items():
        ours = name.removeprefix(SLOW)
        if name.startswith(FAST):
            tail = name.removeprefix(FAST)
            ours = tail if tail.startswith("codebook_embeddings") else f"fast_{tail}"
        tensors[ours] = tensor
    model.load_state_dict(tensors)


def random_prompt(checkpoint: Checkpoint, seed: int) -> Prompt:
    """A prompt with some transcript, frames and text."""
    random = np.random.default_rng(seed)
    tokenizer = Tokenizer(checkpoint.folder, checkpoint.config)
    limits = checkpoint.config.code_limits
    codes = random.integers(0, limits, (int(random.integers(4, 30)), len(limits))).astype(np.uint16)
    words = ["morning", "Stimme", "voix", "story", "night", "声音"]
    transcript, text = (" ".join(random.choice(words, 6)) for _ in range(2))
    return Prompt(tokenizer.reference_ids(transcript), codes, tokenizer.text_ids(text))


def official_prompt(checkpoint: Checkpoint, prompt: Prompt) -> torch.Tensor:
    """The same as the official code takes it: int [11, T]."""
    start = checkpoint.config.semantic_start_token_id
    tokens = np.concatenate([prompt.reference_ids, start + prompt.reference_codes[:, 0].astype(int), prompt.text_ids])
    values = np.zeros((1 + prompt.reference_codes.shape[1], len(tokens)), np.int64)
    values[0] = tokens
    first = len(prompt.reference_ids)
    values[1:, first : first + len(prompt.reference_codes)] = prompt.reference_codes.T
    return torch.from_numpy(values)
