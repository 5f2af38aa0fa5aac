"""The talker of random checkpoints in the official format: its part of config.json, and model.safetensors.

Under its weights signals neither vanish nor explode, frames are about as loud as the noise that they come from, and a
speech ends about once in some hundred frames.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.families.gains import VECTOR, Gains, Sizes, around, spread
from tools.families.weight_files import Shapes, noise_of, with_changed, write_weights
from voice_clone.families.voxcpm2.audio_vae_config import LATENT_SIZE, LATENTS
from voice_clone.families.voxcpm2.config import (
    MODEL,
    LanguageModelConfig,
    LocalConfig,
    RopeScaling,
    VoxCPM2Config,
)
from voice_clone.families.voxcpm2.networks.talker import TalkerNetwork

STOP_HEAD, STOP_PROJ = "stop_head.weight", "stop_proj"
_TABLE = Gains(
    kinds=(
        (r"(embed_tokens\.weight|special_token)$", spread()),
        (r"\.bias$", spread(0.1)),
        (VECTOR, around(1, 0.1)),  # norms
    ),
    gains=(
        (r"^feat_decoder\..*\.o_proj\.", 1.5),  # a frame depends on the rows before it
        (r"\.(o_proj|down_proj)\.", 0.3),
        (r"^fsq_layer\.", 2.0),  # all levels come up
        (r"^feat_decoder\.estimator\.(in_proj|cond_proj)\.", 0.5),
    ),
    fan_in=lambda name, sizes: sizes[1],
)
ONWARD = 1.0  # by how much each weight of going on is above those of the end, in standard deviations
LAST_FACTOR = 31.0  # by which the slowest pair of dimensions turns more slowly


def _factors(channels: int) -> tuple[float, ...]:
    """Rising as the released ones do, from 1 to `LAST_FACTOR`."""
    pairs = channels // 2
    return tuple(round(LAST_FACTOR ** (pair / (pairs - 1)), 4) for pair in range(pairs))


_LM = LanguageModelConfig(
    hidden_size=2048,
    intermediate_size=6144,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=2,
    kv_channels=128,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    vocab_size=73448,
    max_position_embeddings=32768,
    rope_scaling=RopeScaling("longrope", _factors(128), 32768),
)
_LOCAL = LocalConfig(hidden_dim=1024, ffn_dim=4096, num_heads=16, num_layers=12, kv_channels=128)
_RELEASED = VoxCPM2Config(
    lm_config=_LM,
    encoder_config=_LOCAL,
    dit_config=_LOCAL,
    residual_lm_num_layers=8,
    scalar_quantization_latent_dim=512,
    scalar_quantization_scale=9,
)
_SMALL = LocalConfig(hidden_dim=32, ffn_dim=64, num_heads=2, num_layers=2, kv_channels=16)
TALKERS = {
    "tiny": replace(
        _RELEASED,
        lm_config=replace(
            _LM,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            kv_channels=16,
            vocab_size=1536,
            rope_scaling=RopeScaling("longrope", _factors(16), 32768),
        ),
        encoder_config=_SMALL,
        dit_config=_SMALL,
        residual_lm_num_layers=1,
        scalar_quantization_latent_dim=16,
    ),
    "2b-2": replace(
        _RELEASED,
        lm_config=replace(_LM, num_hidden_layers=2),
        encoder_config=replace(_LOCAL, num_layers=2),
        dit_config=replace(_LOCAL, num_layers=2),
        residual_lm_num_layers=1,
    ),
    "2b": _RELEASED,
}
# What the released config.json says besides; the official code needs it.
_LM_FIXED = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_mup": False,
    "scale_emb": 12,
    "dim_model_base": 256,
    "scale_depth": 1.4,
}
_CFM = {"sigma_min": 1e-6, "solver": "euler", "t_scheduler": "log-norm", "inference_cfg_rate": 2.0}


def talker_json(config: VoxCPM2Config) -> dict[str, Any]:
    """config.json without `audio_vae_config`."""
    lm = asdict(config.lm_config)
    scaling = {**lm["rope_scaling"], "short_factor": list(config.lm_config.rope_scaling.short_factor)}
    return {
        "architecture": "voxcpm2",
        "lm_config": {**lm, **_LM_FIXED, "rope_scaling": {**scaling, "long_factor": scaling["short_factor"]}},
        "patch_size": LATENTS,
        "feat_dim": LATENT_SIZE,
        "scalar_quantization_latent_dim": config.scalar_quantization_latent_dim,
        "scalar_quantization_scale": config.scalar_quantization_scale,
        "residual_lm_num_layers": config.residual_lm_num_layers,
        "residual_lm_no_rope": True,
        "encoder_config": asdict(config.encoder_config),
        "dit_config": {**asdict(config.dit_config), "mean_mode": False, "cfm_config": _CFM},
        "max_length": config.max_length,
        "device": "cuda",
        "dtype": "bfloat16",
    }


def write_talker(config: VoxCPM2Config, seed: int, folder: Path, dtype: str, shards: int) -> None:
    """Write model.safetensors; arguments as of `make_checkpoint`. The folder exists."""
    write_weights(folder, talker_shapes(config), partial(_tensor, seed=seed), dtype, shards, MODEL)


def talker_shapes(config: VoxCPM2Config) -> Shapes:
    """Names and shapes of all tensors in model.safetensors."""
    with torch.device("meta"):
        talker = TalkerNetwork(config)
    parts = (talker.models, talker.sampler)
    return {name: tuple(tensor.shape) for part in parts for name, tensor in part.state_dict().items()}


def make_endless(checkpoint: Path, folder: Path) -> Path:
    """A checkpoint like `checkpoint`, in the new folder `folder`, whose speech never ends, not even by chance.

    It links to the files of `checkpoint`, and needs them.
    """

    def change(tensors: dict[str, Tensor]) -> None:
        tensors[f"{STOP_PROJ}.weight"].zero_()
        tensors[f"{STOP_PROJ}.bias"].fill_(1)
        tensors[STOP_HEAD][0], tensors[STOP_HEAD][1] = 1, 0

    return with_changed(checkpoint, folder, MODEL, (STOP_HEAD, f"{STOP_PROJ}.weight", f"{STOP_PROJ}.bias"), change)


def _tensor(name: str, shape: Sizes, seed: int) -> Tensor:
    if name != STOP_HEAD:
        return _TABLE(name, shape, seed)
    noise = noise_of(name, shape, seed)
    made = noise - noise.mean(1, keepdim=True)
    made[0] += ONWARD  # what it is multiplied with is above zero on the average
    return made / math.sqrt(shape[1])
