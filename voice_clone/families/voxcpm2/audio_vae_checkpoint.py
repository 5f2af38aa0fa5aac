"""The AudioVAE's weights in a checkpoint folder, and how their official names and layouts become ours.

Convolutions are weight-normed: a direction and a length. The decoder has scales and biases for several ranges of output
rates; only those of its own rate are taken.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from voice_clone.checkpoint import CheckpointFiles, Source, as_it_is, fold
from voice_clone.checkpoint_folder import check_converted
from voice_clone.errors import CheckpointError
from voice_clone.families.voxcpm2.audio_vae_config import AUDIO_VAE, AudioVAEConfig, load_audio_vae_config
from voice_clone.families.voxcpm2.networks.audio_decoder import AudioDecoder
from voice_clone.families.voxcpm2.networks.audio_encoder import AudioEncoder

ENCODER = "encoder."
BOUNDARIES = "decoder.sr_bin_boundaries"  # those of config.json, which the official module keeps among its tensors
_NAMES = (  # ours -> official, in this order
    (r"^decoder\.(\d+)\.affine\.scale$", r"decoder.sr_cond_model.\1.scale_embed.weight"),
    (r"^decoder\.(\d+)\.affine\.shift$", r"decoder.sr_cond_model.\1.bias_embed.weight"),
    (r"^decoder\.(\d)", r"decoder.model.\1"),
    (r"\.act1\.", ".block.0."),
    (r"\.conv1\.", ".block.1."),
    (r"\.act2\.", ".block.2."),
    (r"\.conv2\.", ".block.3."),
    (r"\.conv\.", "."),
)


class AudioVAECheckpoint(CheckpointFiles):
    """A checkpoint folder with config.json and audiovae.safetensors.

    Raises:
        CheckpointError: the configuration cannot be read, or is that of another kind of network.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.config: AudioVAEConfig = load_audio_vae_config(folder)

    def source(self, name: str, shape: tuple[int, ...]) -> Source:
        """Of our name and shape the official tensors."""
        official = name
        for ours, theirs in _NAMES:
            official = re.sub(ours, theirs, official)
        if ".affine." in name:
            buckets = len(self.config.sr_bin_boundaries) + 1
            return Source({official: (buckets, *shape)}, partial(_row, number=self.config.rate_bucket))
        if name.endswith(".conv.weight"):
            stem = official.removesuffix("weight")
            return Source({f"{stem}weight_g": (shape[0], 1, 1), f"{stem}weight_v": shape}, fold)
        return Source({official: shape}, as_it_is)

    @property
    def expected(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all official tensors, also of the one layer that is not computed."""
        with torch.device("meta"):
            encoder, decoder = AudioEncoder(self.config), AudioDecoder(self.config)
        found = self.sources(encoder, ENCODER) | self.sources(decoder)
        variance = {  # that of the latents, which training samples from
            name.replace("fc_mu", "fc_logvar"): shape for name, shape in found.items() if "fc_mu" in name
        }
        return found | variance

    def check(self) -> None:
        """Check that audiovae.safetensors has the tensors of such a network and no others.

        Raises:
            CheckpointError: it is missing, not converted yet, or has other ones.
        """
        check_converted(self.folder, AUDIO_VAE, f"{AUDIO_VAE}.pth")
        if strange := sorted(self.shapes(AUDIO_VAE).keys() - self.expected - {BOUNDARIES}):
            raise CheckpointError(f"{AUDIO_VAE}.safetensors: tensor {strange[0]} belongs to no such network")

    def encoder_fingerprint(self, encoder: nn.Module) -> str:
        """Of the encoder's weights, and of what is made of a clip before it."""
        return self.fingerprint({"encoder": "voxcpm2"}, AUDIO_VAE, "", self.sources(encoder, ENCODER))


def _row(table: Tensor, number: int) -> Tensor:
    return table[number]
