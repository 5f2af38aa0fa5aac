"""Random weights of the AudioVAE in the official format, audiovae.pth, under which signals neither vanish nor explode.

The recipe: a layer's output has about the power of its input, residual branches add a fraction, and the waveform stays
far from the limits. A weight-normed weight has the length of its gain and any direction.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tools.families.gains import Gains, around, length, spread
from voice_clone.families.voxcpm2.audio_vae_checkpoint import BOUNDARIES, AudioVAECheckpoint
from voice_clone.families.voxcpm2.audio_vae_config import AUDIO_VAE, AudioVAEConfig

AUDIO_VAES = {
    "tiny": AudioVAEConfig(encoder_dim=8, decoder_dim=256),
    "2b-2": AudioVAEConfig(),
    "2b": AudioVAEConfig(),
}
WAVEFORM = 0.08  # of the last layer


def _table(config: AudioVAEConfig) -> Gains:
    return Gains(
        kinds=(
            (r"weight_v$", spread()),
            (r"weight_g$", length),
            (r"(alpha|scale_embed\.weight)$", around(1, 0.2)),
            (r"bias_embed\.weight$", spread(0.2)),
            (r".", spread(0.05)),
        ),
        gains=(
            (r"^encoder\.block\.0\.", 10.0),  # speech has an RMS near 0.1
            (r"^encoder\.block\.\d+\.block\.\d\.block\.3\.", 0.4),  # residual units
            (rf"^decoder\.model\.{len(config.decoder_rates) + 3}\.", WAVEFORM),
            # The length of an input channel's weights; two inputs meet in an output.
            *(
                (rf"^decoder\.model\.{at}\.block\.1\.", math.sqrt(rate / 2))
                for at, rate in enumerate(config.decoder_rates, 2)
            ),
            (r"^decoder\.model\.\d+\.block\.\d\.block\.3\.", 0.3),
        ),
    )


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
    table = _table(config)
    tensors = {name: table(name, size, seed) for name, size in checkpoint.expected.items()}
    tensors[BOUNDARIES] = torch.tensor(config.sr_bin_boundaries, dtype=torch.int32)
    torch.save({"state_dict": tensors}, folder / f"{AUDIO_VAE}.pth")
