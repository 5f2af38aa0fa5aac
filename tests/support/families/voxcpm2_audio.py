"""Small AudioVAEs of VoxCPM2 in two shapes, and our networks with their weights."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch

from tools.families.voxcpm2.audio_vae import AUDIO_VAES, write_audio_vae
from voice_clone.families.voxcpm2.audio_vae_checkpoint import ENCODER, AudioVAECheckpoint
from voice_clone.families.voxcpm2.audio_vae_config import AUDIO_VAE, AudioVAEConfig
from voice_clone.families.voxcpm2.networks.audio_decoder import AudioDecoder
from voice_clone.families.voxcpm2.networks.audio_encoder import AudioEncoder
from voice_clone_server.families.voxcpm2.pickle_converter import convert

AUDIO_VAE_SHAPES: dict[str, AudioVAEConfig] = {
    "tiny": AUDIO_VAES["tiny"],
    # Widths that fill no vector, other rates, another bucket.
    "odd": AudioVAEConfig(
        encoder_dim=5,
        encoder_rates=(4, 4, 5, 8),
        decoder_dim=192,
        decoder_rates=(10, 8, 3, 2, 4),
        sr_bin_boundaries=(20000, 48000),
    ),
}


def make_audio_vae_folder(folder: Path, shape: str = "tiny", seed: int = 0) -> AudioVAECheckpoint:
    """A checkpoint in a new folder that has nothing but an AudioVAE, converted."""
    config = AUDIO_VAE_SHAPES.get(shape) or AUDIO_VAES[shape]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"audio_vae_config": asdict(config)}), encoding="utf-8")
    write_audio_vae(config, seed, folder)
    convert(folder)
    return AudioVAECheckpoint(folder)


def load_audio_vae(checkpoint: AudioVAECheckpoint) -> tuple[AudioEncoder, AudioDecoder]:
    """Our networks in fp32, on the CPU, in torch."""
    with torch.device("meta"):
        encoder, decoder = AudioEncoder(checkpoint.config), AudioDecoder(checkpoint.config)
    checkpoint.load(encoder, AUDIO_VAE, ENCODER, torch.float32, "cpu")
    checkpoint.load(decoder, AUDIO_VAE, "", torch.float32, "cpu")
    return encoder.eval().requires_grad_(False), decoder.eval().requires_grad_(False)
