"""Random weights of the AudioVAE in the official format, audiovae.pth, under which signals neither vanish nor explode.

The recipe: a layer's output has about the power of its input, residual branches add a fraction, and the waveform stays
far from the limits. A weight-normed weight has the length of its gain and any direction.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.families.weight_files import noise_of
from voice_clone.families.voxcpm2.audio_vae_checkpoint import BOUNDARIES, AudioVAECheckpoint
from voice_clone.families.voxcpm2.audio_vae_config import AUDIO_VAE, AudioVAEConfig

AUDIO_VAES = {
    "tiny": AudioVAEConfig(encoder_dim=8, decoder_dim=256),
    "2b-2": AudioVAEConfig(),
    "2b": AudioVAEConfig(),
}
# Gains of weight-normed convolutions; the first pattern found counts, else 1.
_GAINS = (
    (r"^encoder\.block\.0\.", 10.0),  # speech has an RMS near 0.1
    (r"^encoder\.block\.\d+\.block\.\d\.block\.3\.", 0.4),  # residual units
    (r"^decoder\.model\.\d+\.block\.\d\.block\.3\.", 0.3),
)
WAVEFORM = 0.08  # of the last layer


def audio_vae_json(shape: str) -> dict[str, Any]:
    """`audio_vae_config` of config.json."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(AUDIO_VAES[shape]).items()}


def make_audio_vae(shape: str, seed: int, folder: Path) -> None:
    """Write audiovae.pth. Same arguments, same tensors.

    Args:
        shape: a key of `AUDIO_VAES`.
        seed: of all weights.
        folder: that is there, with its config.json.
    """
    write_audio_vae(AUDIO_VAES[shape], seed, folder)


def write_audio_vae(config: AudioVAEConfig, seed: int, folder: Path) -> None:
    """As `make_audio_vae`, of any sizes; they are those of config.json."""
    checkpoint = AudioVAECheckpoint(folder)
    assert checkpoint.config == config
    tensors = {name: _tensor(name, size, seed, config) for name, size in checkpoint.expected.items()}
    tensors[BOUNDARIES] = torch.tensor(config.sr_bin_boundaries, dtype=torch.int32)
    torch.save({"state_dict": tensors}, folder / f"{AUDIO_VAE}.pth")


def _tensor(name: str, size: tuple[int, ...], seed: int, config: AudioVAEConfig) -> Tensor:
    noise = noise_of(name, size, seed)
    if name.endswith("weight_v"):
        return noise
    if name.endswith("weight_g"):
        return _gain(name, config) * (1 + 0.05 * noise)
    if name.endswith("alpha"):
        return 1 + 0.2 * noise
    if name.endswith("scale_embed.weight"):
        return 1 + 0.2 * noise
    return (0.2 if name.endswith("bias_embed.weight") else 0.05) * noise


def _gain(name: str, config: AudioVAEConfig) -> float:
    if upsampling := re.match(r"decoder\.model\.(\d+)\.block\.1\.", name):
        rate = config.decoder_rates[int(upsampling[1]) - 2]
        return math.sqrt(rate / 2)  # the length of an input channel's weights; two inputs meet in an output
    if name.startswith(f"decoder.model.{len(config.decoder_rates) + 3}."):
        return WAVEFORM
    return next((gain for pattern, gain in _GAINS if re.search(pattern, name)), 1.0)
