"""Makes small random checkpoints of chirp. Same seed, same bytes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from tools.example_family.codec import ChirpDecoder
from tools.example_family.config import CONFIG_FILE, WEIGHTS, load_config
from tools.example_family.encoder import TimbreEncoder
from tools.example_family.talker import ChirpTalker

CONFIG: dict[str, Any] = {
    "model_type": "chirp",
    "codebook_sizes": [40, 24, 24],
    "sample_rate": 44100,
    "timbre_size": 8,
    "timbre_samples": 11024,
    "talker": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    },
    "decoder": {"hidden_size": 16, "upsampling": [7, 7, 9]},
    "sampling": {"temperature": 0.9, "max_frames": 300},
}
GAINS = {"talker": 1.5, "decoder": 0.7, "encoder": 0.3}


def make_checkpoint(seed: int, folder: Path) -> Path:
    """Write a checkpoint to a new folder.

    Its end code is likely enough to come now and then, and never among the likeliest five: with a `top_k` of 5 a stream
    lasts as long as it may.
    """
    folder.mkdir(parents=True)
    (folder / CONFIG_FILE).write_text(json.dumps(CONFIG), encoding="utf-8")
    config = load_config(folder)
    parts: dict[str, nn.Module]
    with torch.device("meta"):
        parts = {"talker": ChirpTalker(config), "decoder": ChirpDecoder(config), "encoder": TimbreEncoder(config)}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for part, module in parts.items():
        for name, meta in sorted(module.state_dict().items()):
            drawn = torch.randn(meta.shape, generator=generator)
            tensors[f"{part}.{name}"] = _scaled(name, GAINS[part], drawn)
    tensors["talker.heads.0.weight"][-1] = 0
    save_file(tensors, folder / f"{WEIGHTS}.safetensors")
    return folder


def _scaled(name: str, gain: float, drawn: torch.Tensor) -> torch.Tensor:
    """Values with which the networks' outputs are neither silence nor all alike."""
    if "norm" in name:
        return 1 + 0.1 * drawn
    if drawn.ndim == 1:
        return 0.1 * drawn
    if name.startswith(("bytes", "codes")):
        return drawn
    inputs = 2 * len(drawn) if name.startswith("upsampling") else drawn.numel() // len(drawn)
    return drawn * (gain / math.sqrt(inputs))
