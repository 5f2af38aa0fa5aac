"""The talker of random checkpoints in the official format: config.json, model.safetensors, tokenizer.json."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer

from tools.families.byte_level_bpe import QWEN_ADDED, qwen_tokenizer, train_merges, vocabulary_of
from tools.families.gains import VECTOR, Gains, around, spread
from tools.families.weight_files import Shapes, write_json, write_weights
from voice_clone.families.omnivoice.config import (
    CODEBOOKS,
    CONFIG_FILE,
    IDS,
    MASK,
    MODEL,
    TOKENIZER_FILE,
    TalkerConfig,
)
from voice_clone.families.omnivoice.prompt import CONTROL
from voice_clone.families.omnivoice.talker import Talker

RELEASED_WORDS = 151643  # tokens of Qwen3's vocabulary, without the added ones
LOGITS = 3.0  # spread of the logits of codes

_RELEASED = TalkerConfig(
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    vocab_size=151676,
)
TALKERS = {
    "tiny": replace(
        _RELEASED,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=1280,
    ),
    "released-2": replace(_RELEASED, num_hidden_layers=2),
    "released": _RELEASED,
}


def make_talker(shape: str, seed: int, folder: Path, dtype: str = "fp32", shards: int = 1) -> None:
    """Write configuration, tokenizer and weights.

    Args:
        shape: a key of `TALKERS`.
        seed: of all weights.
        folder: it exists.
        dtype, shards: as of `write_weights`.
    """
    config = TALKERS[shape]
    write_json(folder / CONFIG_FILE, official_config(config))
    words = RELEASED_WORDS if config.vocab_size == _RELEASED.vocab_size else None
    make_tokenizer(words).save(str(folder / TOKENIZER_FILE))
    write_json(folder / "tokenizer_config.json", _TOKENIZER)
    write_weights(folder, talker_shapes(config), lambda name, size: _TABLE(name, size, seed), dtype, shards, MODEL)


def official_config(config: TalkerConfig) -> dict[str, Any]:
    """The content of config.json."""
    sizes = asdict(config)
    theta = sizes.pop("rope_theta")
    return {
        "architectures": ["OmniVoice"],
        "audio_codebook_weights": [8, 8, 6, 6, 4, 4, 2, 2],
        "audio_mask_id": MASK,
        "audio_vocab_size": IDS,
        "llm_config": {
            **_QWEN3,
            **sizes,
            "layer_types": ["full_attention"] * config.num_hidden_layers,
            "max_window_layers": config.num_hidden_layers,
            "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        },
        "model_type": "omnivoice",
        "num_audio_codebook": CODEBOOKS,
    }


def talker_shapes(config: TalkerConfig) -> Shapes:
    """Names and shapes of all tensors in model.safetensors that the talker reads."""
    with torch.device("meta"):
        talker = Talker(config)
    return {name: tuple(tensor.shape) for name, tensor in talker.state_dict().items()}


def make_tokenizer(words: int | None) -> Tokenizer:
    """Qwen3's kind of tokenizer with the control tokens behind the vocabulary.

    Args:
        words: tokens of the vocabulary; those that the merges leave over are tokens that no text makes. None: no
            filling.
    """
    merges = train_merges()
    tokenizer = qwen_tokenizer(vocabulary_of(merges, words), merges)
    tokenizer.add_special_tokens([AddedToken(each, normalized=False) for each in (*QWEN_ADDED, *CONTROL)])
    return tokenizer


# What the released config.json says of its layers besides the sizes.
_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_cache": True,
    "use_sliding_window": False,
}
_TOKENIZER = json.loads(
    """{"add_prefix_space": false, "clean_up_tokenization_spaces": false, "eos_token": "<|im_end|>",
    "errors": "replace", "pad_token": "<|endoftext|>", "tokenizer_class": "Qwen2Tokenizer", "unk_token": null}"""
)


_TABLE = Gains(
    kinds=((r"embed", spread(0.5)), (VECTOR, around(1, 0.1))),
    gains=((r"^audio_heads", LOGITS), (r"(o_proj|down_proj)\.weight$", 0.3)),
    fan_in=lambda name, sizes: sizes[1],
)
