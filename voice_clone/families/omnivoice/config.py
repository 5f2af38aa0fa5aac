"""OmniVoice's configuration: `config.json` of a checkpoint folder, and the names of what goes between the stages.
Needs no torch.

The codec beside it has a configuration of its own, see `codec_config.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voice_clone.checkpoint_folder import check_fixed, multiple_of, parse, read_recognised
from voice_clone.errors import CheckpointError
from voice_clone.families.omnivoice.family import CARD

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
MODEL, CODEC = (each.name for each in CARD.weights)

FRAME_RATE = 25  # frames a second
CODEBOOKS, CODES = 8, 1024  # of a frame, and of a codebook

MASK = CODES  # the code of a masked cell
IDS = CODES + 1  # of a codebook: its codes and the mask

[ICL] = CARD.modes
CODEC_CODES, REF_RMS = (
    each.name for each in CARD.artifacts
)  # uint16 [frames, CODEBOOKS]; float32 [1], of the clip as it came
_, TEXT_CHUNKS, REMOVE_SILENCE = CARD.frame.voice  # int32 [n], the frames of each chunk of the text; uint8 [1]

# What the released checkpoint has, and the only thing that the network computes.
_FIXED: dict[str, Any] = {
    "audio_vocab_size": IDS,
    "audio_mask_id": MASK,
    "num_audio_codebook": CODEBOOKS,
}
_LAYERS_FIXED: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "use_sliding_window": False,
    "rope_scaling": None,
}


@dataclass(frozen=True)
class TalkerConfig:
    """`llm_config`: sizes of a Qwen3 whose positions all see each other, and of the table of text tokens."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int = field(metadata=multiple_of("num_key_value_heads"))
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int


def load_config(folder: Path) -> TalkerConfig:
    """Read and check the configuration of the checkpoint in `folder`.

    Raises:
        CheckpointError: the file is missing or malformed, or this is no checkpoint of OmniVoice.
    """
    values = read_recognised(folder, CARD.recognised_by)
    check_fixed(values, _FIXED, f"{CONFIG_FILE}: ")
    layers = values.get("llm_config")
    if not isinstance(layers, dict):
        raise CheckpointError(f"{CONFIG_FILE}: llm_config is no JSON object")
    check_fixed(layers, _LAYERS_FIXED, f"{CONFIG_FILE}: llm_config.")
    return parse(TalkerConfig, _with_theta(layers), f"{CONFIG_FILE}: llm_config", positive=True)


def _with_theta(layers: dict[str, Any]) -> dict[str, Any]:
    """With `rope_theta` where older files have it: newer ones have it among `rope_parameters`."""
    rope = layers.get("rope_parameters")
    if not isinstance(rope, dict):
        return layers
    if rope.get("rope_type", "default") != "default":
        raise CheckpointError(f"{CONFIG_FILE}: llm_config.rope_parameters.rope_type must be 'default'")
    return {"rope_theta": layers.get("rope_theta"), **layers, **rope}
