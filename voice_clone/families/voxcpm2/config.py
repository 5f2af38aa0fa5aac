"""VoxCPM2's configuration: `config.json` of a checkpoint folder, without the AudioVAE's part. Needs no torch.

Sources: voxcpm 2.0.3, `VoxCPMConfig` and `MiniCPM4Config`, and openbmb/VoxCPM2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voice_clone.checkpoint_folder import multiple_of, parse, read_recognised, weight_names
from voice_clone.errors import CheckpointError
from voice_clone.families.voxcpm2.audio_vae_config import LATENT_SIZE, LATENTS
from voice_clone.families.voxcpm2.family import CARD

CONFIG_FILE = "config.json"
MODEL = CARD.weights[0].name
TEXT_END, REFERENCE_BEGIN, REFERENCE_END = 101, 103, 104  # tokens of a prompt
LEAST_FRAMES = 3  # before the one that may end a speech


@dataclass(frozen=True)
class RopeScaling:
    """How the angles of rotary embedding are divided, by pair of dimensions (LongRoPE)."""

    type: str
    short_factor: tuple[float, ...]
    original_max_position_embeddings: int


@dataclass(frozen=True)
class LanguageModelConfig:
    """`lm_config`: of the base model; the other transformers take from it what they do not have of their own."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int = field(metadata=multiple_of("num_key_value_heads"))
    num_key_value_heads: int
    kv_channels: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    max_position_embeddings: int
    rope_scaling: RopeScaling


@dataclass(frozen=True)
class LocalConfig:
    """`encoder_config` and `dit_config`: of the transformers within a frame."""

    hidden_dim: int
    ffn_dim: int
    num_heads: int
    num_layers: int
    kv_channels: int


@dataclass(frozen=True)
class VoxCPM2Config:
    """Everything that prompt and talker need to know of a checkpoint.

    Attributes:
        lm_config: of the base language model.
        residual_lm_num_layers: of the residual language model, which is like the base one in all else but RoPE.
        scalar_quantization_latent_dim: numbers to which a hidden state is rounded.
        scalar_quantization_scale: steps of each of these numbers from 0 to 1.
        max_length: positions of a prompt and its frames.
    """

    lm_config: LanguageModelConfig
    encoder_config: LocalConfig
    dit_config: LocalConfig
    residual_lm_num_layers: int
    scalar_quantization_latent_dim: int
    scalar_quantization_scale: int
    max_length: int = 8192


def load_config(folder: Path) -> VoxCPM2Config:
    """Read and check the configuration of the checkpoint in `folder`.

    Raises:
        CheckpointError: a file is missing or malformed, this is no checkpoint of VoxCPM2, or its networks are of a kind
            that is not computed here.
    """
    values = read_recognised(folder, CARD.recognised_by)
    config = parse(VoxCPM2Config, values, CONFIG_FILE, positive=True)
    _refuse("", values, {"patch_size": LATENTS, "feat_dim": LATENT_SIZE, "residual_lm_no_rope": True})
    _refuse("lm_config.", values["lm_config"], {"use_mup": False})
    _refuse("dit_config.", values["dit_config"], {"dit_mean_mode": None, "mean_mode": None})
    _check(config)
    return config


def _refuse(where: str, given: Mapping[str, Any], only: Mapping[str, Any]) -> None:
    """Refuse networks that are not computed here. None: the key is missing or false."""
    for name, right in only.items():
        value = given.get(name) or None if right is None else given.get(name)
        if value != right:
            raise CheckpointError(f"{CONFIG_FILE}: {where}{name} is {value!r}; only {right or False!r} is known")


def _check(config: VoxCPM2Config) -> None:
    lm, scaling = config.lm_config, config.lm_config.rope_scaling
    if scaling.type != "longrope" or lm.max_position_embeddings != scaling.original_max_position_embeddings:
        raise CheckpointError(
            f"{CONFIG_FILE}: lm_config.rope_scaling must be longrope with original_max_position_embeddings "
            f"{lm.max_position_embeddings}, as max_position_embeddings is"
        )
    for name, channels, heads in (
        ("lm_config", lm.kv_channels, lm.num_attention_heads),
        ("encoder_config", config.encoder_config.kv_channels, config.encoder_config.num_heads),
        ("dit_config", config.dit_config.kv_channels, config.dit_config.num_heads),
    ):
        if channels != 2 * len(scaling.short_factor):
            raise CheckpointError(
                f"{CONFIG_FILE}: {name}.kv_channels is {channels}; rope_scaling.short_factor has "
                f"{len(scaling.short_factor)} numbers, one for two channels"
            )
        if heads % lm.num_key_value_heads:
            raise CheckpointError(
                f"{CONFIG_FILE}: {name} has {heads} heads, no multiple of num_key_value_heads, {lm.num_key_value_heads}"
            )
    if config.dit_config.hidden_dim < 4 or config.dit_config.hidden_dim % 2:
        raise CheckpointError(
            f"{CONFIG_FILE}: dit_config.hidden_dim is {config.dit_config.hidden_dim}; it must be even"
        )
    if lm.vocab_size <= REFERENCE_END:
        raise CheckpointError(
            f"{CONFIG_FILE}: lm_config.vocab_size is {lm.vocab_size}; it must be above {REFERENCE_END}"
        )


def check_names(folder: Path, expected: set[str]) -> None:
    """Check that the talker's weight file has exactly these tensors. The official code fills gaps with random numbers.

    Raises:
        CheckpointError: a tensor is missing or surplus, or the file is.
    """
    found = weight_names(folder, MODEL)
    for names, fault in ((expected - found, "is missing"), (found - expected, "is none of this model's")):
        if names:
            raise CheckpointError(f"{MODEL}.safetensors: tensor {min(names)} {fault}")
