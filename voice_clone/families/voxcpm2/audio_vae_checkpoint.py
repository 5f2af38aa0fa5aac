"""The AudioVAE's weights in a checkpoint folder, and how their official names and layouts become ours.

Convolutions are weight-normed: a direction and a length. The decoder has scales and biases for several ranges of output
rates; only those of its own rate are taken.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from voice_clone.checkpoint import DAC_NAMES, WEIGHT_NORM, CheckpointFiles, Source, weight_normed
from voice_clone.checkpoint_folder import check_converted
from voice_clone.errors import CheckpointError
from voice_clone.families.voxcpm2.audio_vae_config import AUDIO_VAE, AudioVAEConfig, load_audio_vae_config

if TYPE_CHECKING:  # a stage that finds its weights packed does without torch
    from torch import Tensor

ENCODER = "encoder."
BOUNDARIES = "decoder.sr_bin_boundaries"  # those of config.json, which the official module keeps among its tensors


class AudioVAECheckpoint(CheckpointFiles):
    """A checkpoint folder with config.json and audiovae.safetensors."""

    config: AudioVAEConfig
    load_config = staticmethod(load_audio_vae_config)
    names = (
        (r"^decoder\.(\d+)\.affine\.scale$", r"decoder.sr_cond_model.\1.scale_embed.weight"),
        (r"^decoder\.(\d+)\.affine\.shift$", r"decoder.sr_cond_model.\1.bias_embed.weight"),
        (r"^decoder\.(\d)", r"decoder.model.\1"),
        *DAC_NAMES,
        (r"\.conv\.", "."),
    )

    def source(self, name: str, shape: tuple[int, ...]) -> Source:
        official = self.official(name)
        if ".affine." in name:
            buckets = len(self.config.sr_bin_boundaries) + 1
            return Source({official: (buckets, *shape)}, partial(_row, number=self.config.rate_bucket))
        if name.endswith(".conv.weight"):
            return weight_normed(official.removesuffix("weight"), shape, WEIGHT_NORM)
        return super().source(name, shape)

    def identity(self, file: str) -> list[Any]:
        check_converted(self.folder, AUDIO_VAE, f"{AUDIO_VAE}.pth")
        return super().identity(file)

    @property
    def expected(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all official tensors, also of the one layer that is not computed."""
        import torch

        from voice_clone.families.voxcpm2.networks.audio_decoder import AudioDecoder
        from voice_clone.families.voxcpm2.networks.audio_encoder import AudioEncoder

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


def _row(table: Tensor, number: int) -> Tensor:
    return table[number]
