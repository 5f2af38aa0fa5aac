"""The AudioVAE's sizes, from `audio_vae_config` of config.json, and the form of a frame. Needs no torch.

Source: voxcpm 2.0.3, `AudioVAEConfig`, whose defaults stand for keys that config.json lacks.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from pathlib import Path

from voice_clone.checkpoint_folder import parse, read_json
from voice_clone.errors import CheckpointError
from voice_clone.families.voxcpm2.family import CARD

AUDIO_VAE = CARD.weights[1].name
PIECE_FRAMES = 8  # of a clip, encoded at once
LATENTS = 4  # of a frame, one after the other
LATENT_SIZE = 64
WIDTH = LATENTS * LATENT_SIZE  # numbers of a frame
FRAME_SECONDS = 0.16
CONTEXT_FRAMES = 3  # of a prompt, its last ones: what the decoder hears before a stream that goes on with it
REFERENCE_LATENTS, PROMPT_LATENTS = (each.name for each in CARD.artifacts)  # float32 [frames, 256]
_KEY = "config.json: audio_vae_config"


@dataclass(frozen=True)
class AudioVAEConfig:
    """Sizes of encoder and decoder; the names are official.

    Attributes:
        encoder_dim, decoder_dim: channels of the first layer; they double, or halve, with each rate.
        sample_rate, out_sample_rate: Hz that the encoder takes and the decoder makes.
        sr_bin_boundaries: of the buckets of output rates, for each of which the decoder has scales and biases.

    Raises:
        CheckpointError: on construction, if it is another kind of network.
    """

    encoder_dim: int = 128
    encoder_rates: tuple[int, ...] = (2, 5, 8, 8)
    latent_dim: int = LATENT_SIZE
    decoder_dim: int = 2048
    decoder_rates: tuple[int, ...] = (8, 6, 5, 2, 2, 2)
    depthwise: bool = True
    sample_rate: int = 16000
    out_sample_rate: int = 48000
    use_noise_block: bool = False
    sr_bin_boundaries: tuple[int, ...] = (20000, 30000, 40000)
    cond_type: str = "scale_bias"
    cond_out_layer: bool = False

    def __post_init__(self) -> None:
        fixed = {"latent_dim": LATENT_SIZE, "depthwise": True, "use_noise_block": False, "cond_out_layer": False}
        for name, expected in fixed.items():
            if getattr(self, name) != expected:
                raise CheckpointError(f"{_KEY}: {name} is {getattr(self, name)!r}; only {expected!r} is known")
        if self.cond_type not in ("scale_bias", "scale_bias_init"):  # they differ only in how training begins
            raise CheckpointError(f"{_KEY}: cond_type is {self.cond_type!r}; only 'scale_bias' is known")
        sizes = (self.encoder_dim, self.decoder_dim, *self.encoder_rates, *self.decoder_rates)
        if min(sizes) < 1 or self.decoder_dim % (1 << len(self.decoder_rates)):
            raise CheckpointError(f"{_KEY}: its sizes {sizes} are not those of such a network")
        for samples, rate in ((self.clip_samples, self.sample_rate), (self.frame_samples, self.out_sample_rate)):
            if samples != round(FRAME_SECONDS * rate):
                raise CheckpointError(f"{_KEY}: a frame has {samples} samples at {rate} Hz; expected {FRAME_SECONDS} s")

    @property
    def clip_samples(self) -> int:
        """Samples of a clip that make a frame."""
        return LATENTS * math.prod(self.encoder_rates)

    @property
    def frame_samples(self) -> int:
        """Samples of speech that a frame makes."""
        return LATENTS * math.prod(self.decoder_rates)

    @property
    def rate_bucket(self) -> int:
        """That of `out_sample_rate`."""
        return bisect.bisect_left(self.sr_bin_boundaries, self.out_sample_rate)


def load_audio_vae_config(folder: Path) -> AudioVAEConfig:
    """Of a checkpoint folder.

    Raises:
        CheckpointError: config.json cannot be read, or is that of another kind of network.
    """
    return parse(AudioVAEConfig, read_json(folder, "config.json").get("audio_vae_config") or {}, _KEY)
