"""The official AudioVAE of VoxCPM2, from voxcpm 2.0.3, with the weights of a checkpoint.

Its one module needs torch and pydantic alone, so it is read by itself, without the package around it.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.support.oracles.packages import PACKAGES, quiet
from voice_clone.families.voxcpm2.audio_vae_checkpoint import BOUNDARIES, AudioVAECheckpoint
from voice_clone.families.voxcpm2.audio_vae_config import AUDIO_VAE, WIDTH

_NAME = "official_audio_vae"


def official_audio_vae(checkpoint: AudioVAECheckpoint) -> Any:
    """`AudioVAE` with the checkpoint's weights, fp32."""
    module = sys.modules.get(_NAME) or _load()
    names = module.AudioVAEConfig.model_fields.keys() - {"cond_dim"}
    fields = {name: getattr(checkpoint.config, name) for name in names}
    with quiet():
        made = module.AudioVAE(module.AudioVAEConfig(**fields))
    missing, strange = made.load_state_dict(load_file(checkpoint.folder / f"{AUDIO_VAE}.safetensors"), strict=False)
    assert missing == [BOUNDARIES] and not strange
    return made.eval().requires_grad_(False)


@torch.inference_mode()
def official_frames(vae: Any, waveform: Tensor, left: bool = False) -> Tensor:
    """A clip [T] -> frames [n, 256]; zeros fill the last frame, or, with `left`, the first one."""
    missing = -len(waveform) % (vae.chunk_size * WIDTH // vae.latent_dim)
    padded = torch.nn.functional.pad(waveform, (missing, 0) if left else (0, missing))
    latents: Tensor = vae.encode(padded[None], vae.sample_rate)
    return latents[0].T.reshape(-1, WIDTH)


@torch.inference_mode()
def official_waveform(vae: Any, frames: Tensor) -> Tensor:
    """Frames [n, 256] -> samples [m], all at once."""
    waveform: Tensor = vae.decode(frames.reshape(1, -1, vae.latent_dim).transpose(1, 2))
    return waveform[0, 0]


def _load() -> Any:
    file = PACKAGES / "voxcpm" / "modules" / "audiovae" / "audio_vae_v2.py"
    spec = importlib.util.spec_from_file_location(_NAME, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with quiet():
        sys.modules[_NAME] = module
        spec.loader.exec_module(module)
    return module
