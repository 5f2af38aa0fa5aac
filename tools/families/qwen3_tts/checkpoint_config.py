"""The JSON files of a random checkpoint, with the keys and values of the released 12 Hz models, and its tokenizer.

Left out: what transformers writes for every model and nothing here or there reads (`id2label`, `num_beams`, ...).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tools.families.byte_level_bpe import QWEN_ADDED, train_merges, vocabulary_of, write_vocabulary
from voice_clone.families.qwen3_tts.config import Kind

Json = dict[str, Any]

CODEC_EOS = 2150

LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
    "beijing_dialect": 2074,
    "sichuan_dialect": 2062,
}


SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
"""The built-in speakers of CustomVoice; which tokens they have does not matter here."""
DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}


@dataclass(frozen=True)
class Shape:
    """The sizes in which checkpoints differ; the fields' defaults are the released 0.6B's.

    `kind` is the `tts_model_type`.
    `base_vocabulary` is the number of text tokens before the special ones; None: as many as the tokenizer learns.
    `talker`, `predictor`, `speaker`, `encoder`, `decoder` replace values of those parts of the configuration.
    """

    size: str
    base_vocabulary: int | None = 151643
    talker: Json = field(default_factory=dict)
    predictor: Json = field(default_factory=dict)
    speaker: Json = field(default_factory=dict)
    encoder: Json = field(default_factory=dict)
    decoder: Json = field(default_factory=dict)
    kind: Kind = "base"


_ROPE = {"interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default", "type": "default"}
_TINY_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 128}

SHAPES = {
    "0.6b": Shape("0b6"),
    "1.7b": Shape("1b7", talker={"hidden_size": 2048, "intermediate_size": 6144}, speaker={"enc_dim": 2048}),
    # Same parts, also the 1.7B's projection into the code predictor; but nothing is wider than a test needs.
    "tiny": Shape(
        "tiny",
        base_vocabulary=None,
        talker={
            **_TINY_ATTENTION,
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "text_hidden_size": 64,
            "rope_scaling": _ROPE | {"mrope_section": [6, 5, 5]},
        },
        predictor={**_TINY_ATTENTION, "hidden_size": 48, "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2},
        speaker={
            "enc_dim": 64,
            "enc_channels": [32, 32, 32, 32, 96],
            "enc_attention_channels": 16,
            "enc_res2net_scale": 4,
            "enc_se_channels": 16,
        },
        encoder={
            "hidden_size": 64,
            "upsample_groups": 64,
            "num_filters": 4,
            "codebook_dim": 16,
            "vector_quantization_hidden_dimension": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "intermediate_size": 128,
        },
        decoder={
            "latent_dim": 64,
            "codebook_dim": 32,
            "vector_quantization_hidden_dimension": 32,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "num_hidden_layers": 2,
            "decoder_dim": 64,
        },
    ),
}
for _name in ("0.6b", "1.7b", "tiny"):
    SHAPES[f"{_name}-custom"] = replace(SHAPES[_name], kind="custom_voice")
for _name in ("1.7b", "tiny"):
    SHAPES[f"{_name}-design"] = replace(SHAPES[_name], kind="voice_design")


def model_config(shape: Shape, special_ids: dict[str, int], text_vocabulary: int) -> Json:
    """config.json; `special_ids` are those of the tokens named in it."""
    predictor = {
        "attention_bias": False,
        "attention_dropout": 0,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "layer_types": ["full_attention"] * 5,
        "max_position_embeddings": 65536,
        "max_window_layers": 28,
        "model_type": "qwen3_tts_talker_code_predictor",
        "num_attention_heads": 16,
        "num_code_groups": 16,
        "num_hidden_layers": 5,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 2048,
    }
    talker = {
        "attention_bias": False,
        "attention_dropout": 0,
        "code_predictor_config": predictor | shape.predictor,
        "codec_bos_id": 2149,
        "codec_eos_token_id": CODEC_EOS,
        "codec_language_id": LANGUAGES,
        "codec_nothink_id": 2155,
        "codec_pad_id": 2148,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "codec_think_id": 2154,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "max_position_embeddings": 32768,
        "model_type": "qwen3_tts_talker",
        "num_attention_heads": 16,
        "num_code_groups": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "pad_token_id": 2148,
        "position_id_per_seconds": 13,
        "rms_norm_eps": 1e-06,
        "rope_scaling": _ROPE,
        "rope_theta": 1000000,
        "sliding_window": None,
        "spk_id": SPEAKERS if shape.kind == "custom_voice" else {},
        "spk_is_dialect": {n: DIALECTS.get(n, False) for n in SPEAKERS} if shape.kind == "custom_voice" else {},
        "text_hidden_size": 2048,
        "text_vocab_size": text_vocabulary,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 3072,
    }
    config = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "assistant_token_id": special_ids["assistant"],
        "im_end_token_id": special_ids["<|im_end|>"],
        "im_start_token_id": special_ids["<|im_start|>"],
        "model_type": "qwen3_tts",
        "talker_config": talker | shape.talker,
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "transformers_version": "4.57.3",
        "tts_bos_token_id": special_ids["<tts_text_bos>"],
        "tts_eos_token_id": special_ids["<tts_text_eod>"],
        "tts_model_size": shape.size,
        "tts_model_type": shape.kind,
        "tts_pad_token_id": special_ids["<tts_pad>"],
    }
    if shape.kind == "base":
        config["speaker_encoder_config"] = {"enc_dim": 1024, "sample_rate": 24000} | shape.speaker
    return config


def codec_config(shape: Shape) -> Json:
    """speech_tokenizer/config.json."""
    encoder = {
        "_frame_rate": 12.5,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "audio_channels": 1,
        "codebook_dim": 256,
        "codebook_size": 2048,
        "compress": 2,
        "dilation_growth_rate": 2,
        "head_dim": 64,
        "hidden_act": "gelu",
        "hidden_size": 512,
        "initializer_range": 0.02,
        "intermediate_size": 2048,
        "kernel_size": 7,
        "last_kernel_size": 3,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "norm_eps": 1e-05,
        "num_attention_heads": 8,
        "num_filters": 64,
        "num_hidden_layers": 8,
        "num_key_value_heads": 8,
        "num_quantizers": 32,
        "num_residual_layers": 1,
        "num_semantic_quantizers": 1,
        "pad_mode": "constant",
        "residual_kernel_size": 3,
        "rope_theta": 10000.0,
        "sampling_rate": 24000,
        "sliding_window": 250,
        "trim_right_ratio": 1.0,
        "upsample_groups": 512,
        "upsampling_ratios": [8, 6, 5, 4],
        "use_cache": False,
        "use_causal_conv": True,
        "use_conv_shortcut": False,
        "use_streaming": False,
        "vector_quantization_hidden_dimension": 256,
    }
    decoder = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "codebook_dim": 512,
        "codebook_size": 2048,
        "decoder_dim": 1536,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "latent_dim": 1024,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "num_attention_heads": 16,
        "num_hidden_layers": 8,
        "num_key_value_heads": 16,
        "num_quantizers": 16,
        "num_semantic_quantizers": 1,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "semantic_codebook_size": 4096,
        "sliding_window": 72,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "vector_quantization_hidden_dimension": 512,
    }
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "decode_upsample_rate": 1920,
        "decoder_config": decoder | shape.decoder,
        "encode_downsample_rate": 1920,
        "encoder_config": encoder | shape.encoder,
        "encoder_valid_num_quantizers": 16,
        "input_sample_rate": 24000,
        "model_type": "qwen3_tts_tokenizer_12hz",
        "output_sample_rate": 24000,
        "transformers_version": "4.57.3",
    }


GENERATION: Json = {
    "do_sample": True,
    "max_new_tokens": 8192,
    "repetition_penalty": 1.05,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
}

TEXT_PREPROCESSOR: Json = {
    "padding_side": "left",
    "padding_value": 0.0,
    "processor_class": "Qwen3TTSProcessor",
    "return_attention_mask": True,
}

CODEC_PREPROCESSOR: Json = {
    "chunk_length_s": None,
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "overlap": None,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 24000,
}


ASSISTANT_ID = 77091  # of the released vocabulary

# The tokens after the text vocabulary, in the order of their ids (151643 to 151675 as released); the words without
# bars of the second tuple are no control tokens.
SPECIAL_TOKENS = (
    *QWEN_ADDED,
    *("<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>"),
    "<|audio_pad|>",
)
_PLAIN = slice(SPECIAL_TOKENS.index("<tool_call>"), SPECIAL_TOKENS.index("</think>") + 1)


def write_tokenizer(
    folder: Path, base_vocabulary: int | None, merges: Sequence[tuple[str, str]] | None = None
) -> dict[str, int]:
    """Write vocab.json, merges.txt and tokenizer_config.json.

    Args:
        folder: exists.
        base_vocabulary: number of text tokens; those that the merges leave over are filled with tokens that no text
            makes. None: no filling.
        merges: None: those learned from a few sentences in many languages.

    Returns:
        The ids of the special tokens and of `assistant`.
    """
    merges = train_merges() if merges is None else merges
    tokens = vocabulary_of(merges, base_vocabulary)
    if base_vocabulary is not None:
        old = tokens.index("assistant")
        tokens[old], tokens[ASSISTANT_ID] = tokens[ASSISTANT_ID], tokens[old]
    special = {token: len(tokens) + index for index, token in enumerate(SPECIAL_TOKENS)}
    plain = SPECIAL_TOKENS[_PLAIN]
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    settings = {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(index): {"content": token, **flags, "special": token not in plain} for token, index in special.items()
        },
        "additional_special_tokens": [token for token in SPECIAL_TOKENS[1:] if token not in plain],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    ids = write_vocabulary(folder, tokens, merges)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return {**special, "assistant": ids["assistant"]}
