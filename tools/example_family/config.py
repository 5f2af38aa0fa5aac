"""Configuration of chirp, a made-up family: `chirp.json` of a checkpoint folder. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from voice_clone.checkpoint_folder import parse, read_json
from voice_clone.errors import CheckpointError

CONFIG_FILE = "chirp.json"
WEIGHTS = "chirp"  # chirp.safetensors
BYTES = 256


@dataclass(frozen=True)
class TalkerConfig:
    """The transformer; its end code follows the codes of codebook 0."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0


@dataclass(frozen=True)
class DecoderConfig:
    """Codebooks to waveform."""

    hidden_size: int
    upsampling: tuple[int, ...]


@dataclass(frozen=True)
class SamplingDefaults:
    """Of the checkpoint."""

    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_frames: int = 400


@dataclass(frozen=True)
class ChirpConfig:
    """Everything the stages need to know of a checkpoint.

    Attributes:
        codebook_sizes: of each codebook.
        timbre_size: numbers of a row of the timbre.
        timbre_samples: samples of a clip that make a row.
    """

    codebook_sizes: tuple[int, ...]
    sample_rate: int
    timbre_size: int
    timbre_samples: int
    talker: TalkerConfig
    decoder: DecoderConfig
    sampling: SamplingDefaults

    @property
    def frame_samples(self) -> int:
        return math.prod(self.decoder.upsampling)

    @property
    def frame_seconds(self) -> float:
        return self.frame_samples / self.sample_rate


def load_config(folder: Path) -> ChirpConfig:
    """Read and check the configuration of the checkpoint in `folder`.

    Raises:
        CheckpointError: the file is missing or malformed, or this is no checkpoint of chirp.
    """
    values = read_json(folder, CONFIG_FILE)
    if values.get("model_type") != "chirp":
        raise CheckpointError(f"{CONFIG_FILE}: model_type is {values.get('model_type')!r}, not 'chirp'")
    config = parse(ChirpConfig, values, CONFIG_FILE)
    if config.timbre_samples % config.timbre_size:
        raise CheckpointError(f"{CONFIG_FILE}: timbre_samples must be a multiple of timbre_size")
    return config
