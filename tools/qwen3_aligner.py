"""Random checkpoints in the official format of Qwen3-ForcedAligner: the times that they tell are noise.

Sizes: `tiny` for tests, `released` with the released shape (1.84 GB), `released-2` with its widths and two layers in
each part. Same arguments, same bytes.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from tools.families.byte_level_bpe import QWEN_ADDED, train_merges, vocabulary_of, write_vocabulary
from tools.families.gains import VECTOR, Gains, around, spread
from tools.families.weight_files import DTYPES, Shapes, maker, write_json, write_weights
from voice_clone.qwen3_aligner.config import (
    AUDIO_END,
    AUDIO_PAD,
    AUDIO_START,
    CONFIG_FILE,
    TIMESTAMP,
    WEIGHTS,
    AlignerConfig,
    AudioConfig,
    TextConfig,
    load_config,
)
from voice_clone.qwen3_aligner.network import ForcedAligner
from voice_clone.stages.text import SETTINGS_FILE

__all__ = ["DTYPES", "SHAPES", "make_checkpoint"]

RELEASED_WORDS = 151643  # tokens of the vocabulary without the added ones
LOGITS = 4.0  # spread of the scores: the likeliest time stands out, as far as noise has one
# The added tokens in the order of their ids, 151643 to 151705 as released; which names are between those that the
# aligner reads does not matter here.
ADDED = (
    *QWEN_ADDED,
    *(AUDIO_START, AUDIO_END),
    *(f"<|unused_{number}|>" for number in range(5)),
    *(AUDIO_PAD, *(f"<|unused_{number}|>" for number in range(5, 33)), TIMESTAMP),
)

_AUDIO = AudioConfig(d_model=1024, encoder_layers=24, encoder_attention_heads=16, encoder_ffn_dim=4096, output_dim=1024)
_TEXT = TextConfig(
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=152064,
)
_SMALL = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 128, "downsample_hidden_size": 16}
SHAPES = {
    "tiny": (
        AudioConfig(d_model=64, output_dim=64, **_SMALL),
        replace(
            _TEXT,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            vocab_size=1280,
        ),
        400,
    ),
    "released-2": (replace(_AUDIO, encoder_layers=2), replace(_TEXT, num_hidden_layers=2), 5000),
    "released": (_AUDIO, _TEXT, 5000),
}
"""Encoder, decoder and the number of classes."""


def _write(shape: str, seed: int, folder: Path, dtype: str, shards: int) -> None:
    """Fill an empty folder."""
    audio, text, classes = SHAPES[shape]
    ids = _write_tokenizer(folder, RELEASED_WORDS if text.vocab_size == _TEXT.vocab_size else None)
    write_json(folder / CONFIG_FILE, _official_config(audio, text, classes, ids))
    write_json(folder / "preprocessor_config.json", _PREPROCESSOR)
    shapes = network_shapes(load_config(folder))
    write_weights(folder, shapes, lambda name, size: _TABLE(name, size, seed), dtype, shards, WEIGHTS)


make_checkpoint = maker(_write)


def network_shapes(config: AlignerConfig) -> Shapes:
    """Names and shapes of all tensors in model.safetensors."""
    with torch.device("meta"):
        state = ForcedAligner(config).state_dict()
    return {f"thinker.{name}": tuple(tensor.shape) for name, tensor in state.items()}


def _official_config(audio: AudioConfig, text: TextConfig, classes: int, ids: dict[str, int]) -> dict[str, Any]:
    third = text.head_dim // 2 * 5 // 16  # 20 of 64
    positions = {
        "interleaved": True,
        "mrope_interleaved": True,
        "mrope_section": [text.head_dim // 2 - 2 * third, third, third],
        "rope_type": "default",
        "type": "default",
    }
    return {
        "architectures": ["Qwen3ASRForConditionalGeneration"],
        "model_type": "qwen3_asr",
        "thinker_config": {
            "audio_config": {
                **asdict(audio),
                "activation_function": "gelu",
                "conv_chunksize": 500,
                "max_source_positions": 1500,
                "model_type": "qwen3_asr_audio_encoder",
                "n_window": 50,
                "num_mel_bins": 128,
                "scale_embedding": False,
            },
            "audio_end_token_id": ids[AUDIO_END],
            "audio_start_token_id": ids[AUDIO_START],
            "audio_token_id": ids[AUDIO_PAD],
            "classify_num": classes,
            "model_type": "qwen3_forced_aligner",
            "text_config": {
                **asdict(text),
                "attention_bias": False,
                "hidden_act": "silu",
                "max_position_embeddings": 65536,
                "model_type": "qwen3_asr_text",
                "rope_scaling": positions,
                "tie_word_embeddings": False,
            },
        },
        "timestamp_segment_time": 80,
        "timestamp_token_id": ids[TIMESTAMP],
        "transformers_version": "4.57.1",
    }


_PREPROCESSOR: dict[str, Any] = {
    "chunk_length": 30,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": 480000,
    "nb_max_frames": 3000,
    "padding_side": "right",
    "padding_value": 0.0,
    "processor_class": "Qwen3ASRProcessor",
    "return_attention_mask": True,
    "sampling_rate": 16000,
}


def _write_tokenizer(folder: Path, words: int | None) -> dict[str, int]:
    """Write vocab.json, merges.txt and tokenizer_config.json; the ids of the added tokens.

    Args:
        words: as of `vocabulary_of`.
    """
    merges = train_merges()
    tokens = vocabulary_of(merges, words)
    write_vocabulary(folder, tokens, merges)
    ids = {token: len(tokens) + index for index, token in enumerate(ADDED)}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    settings = {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(index): {"content": token, **flags, "special": token.startswith("<|")} for token, index in ids.items()
        },
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "extra_special_tokens": {
            "audio_bos_token": AUDIO_START,
            "audio_eos_token": AUDIO_END,
            "audio_token": AUDIO_PAD,
        },
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "processor_class": "Qwen3ASRProcessor",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    write_json(folder / SETTINGS_FILE, settings)
    return ids


_TABLE = Gains(
    kinds=(
        (r"embed_tokens", spread(0.1)),  # all marks have one row, and what the layers add shall tell them apart
        (r"[qk]_norm", around(2, 0.2)),  # so that attention chooses
        (r"\.bias$", spread(0.05)),
        (VECTOR, around(1, 0.1)),
    ),
    gains=(
        (r"lm_head", LOGITS),
        (r"conv2d", 1.6),  # before GELU
        (r"(out_proj|fc2)\.weight$", 0.4),  # branches of the encoder's residual
    ),
)
