"""Sizes of random checkpoints, their config.json as released, and their tokenizer: a small byte-level BPE."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders

from tools.families.byte_level_bpe import QWEN_ADDED, qwen_tokenizer, train_merges, vocabulary_of
from voice_clone.families.fish_speech.config import CodecConfig

CODEBOOKS, SEMANTIC_CODES, RESIDUAL_CODES = 10, 4096, 1024
RELEASED_TEXT_TOKENS = 151643  # before the special ones
RELEASED_VOCABULARY = 155776  # padded: the tokenizer has fewer


@dataclass(frozen=True)
class Shape:
    """Sizes of one kind of checkpoint.

    Attributes:
        text_tokens: number of text tokens; None: as many as the small vocabulary has.
        layers, fast_layers: of the slow and the fast transformer.
        codec_tables: positions of the rotary tables and masks that codec.pth holds besides its weights: of the
            encoder's transformer, and of those beside the quantizer.
    """

    text_tokens: int | None
    dim: int
    intermediate_size: int
    layers: int
    fast_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    codec: CodecConfig
    codec_tables: tuple[int, int]


def _codec(encoder: int, decoder: int, encoder_layers: int, layers: int, intermediate: int) -> CodecConfig:
    return CodecConfig(
        encoder_dim=encoder,
        decoder_dim=decoder,
        encoder_layers=encoder_layers,
        encoder_intermediate=3 * 16 * encoder,  # as the official code has it
        quantizer_layers=layers,
        quantizer_intermediate=intermediate,
        semantic_codes=SEMANTIC_CODES,
        residual_codes=RESIDUAL_CODES,
        residual_books=CODEBOOKS - 1,
        codebook_dim=8,
    )


_RELEASED_CODEC, _RELEASED_TABLES = _codec(64, 1536, 4, 8, 3072), (16384, 4096)
_RELEASED_WIDTHS = (2560, 9728)

SHAPES = {
    "tiny": Shape(None, 64, 128, 2, 1, 4, 2, 16, _codec(8, 48, 1, 2, 192), (64, 32)),
    "s2-pro": Shape(RELEASED_TEXT_TOKENS, *_RELEASED_WIDTHS, 36, 4, 32, 8, 128, _RELEASED_CODEC, _RELEASED_TABLES),
    "s2-pro-2": Shape(  # the released widths, few layers
        RELEASED_TEXT_TOKENS, *_RELEASED_WIDTHS, 2, 1, 32, 8, 128, _RELEASED_CODEC, _RELEASED_TABLES
    ),
}


def model_config(shape: Shape, ids: dict[str, int], vocabulary: int) -> dict[str, Any]:
    """config.json. `ids`: of the special tokens; `vocabulary`: of the slow transformer."""
    common = {
        "attention_o_bias": False,
        "attention_qkv_bias": False,
        "dim": shape.dim,
        "dropout": 0.0,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "n_head": shape.heads,
        "n_local_heads": shape.kv_heads,
        "norm_eps": 1e-06,
        "rope_base": 1000000,
    }
    return {
        "architectures": ["FishQwen3OmniForConditionalGeneration"],
        "audio_decoder_config": {
            **common,
            "attention_qk_norm": False,
            "max_seq_len": CODEBOOKS + 1,
            "model_type": "fish_qwen3_audio_decoder",
            "n_layer": shape.fast_layers,
            "num_codebooks": CODEBOOKS,
            "text_dim": shape.dim,
            "tie_word_embeddings": False,
            "vocab_size": SEMANTIC_CODES,
        },
        "audio_pad_token_id": ids["<|audio_pad|>"],
        "dtype": "bfloat16",
        "eos_token_id": ids["<|im_end|>"],
        "model_type": "fish_qwen3_omni",
        "pad_token_id": ids["<|pad|>"],
        "semantic_end_token_id": ids[f"<|semantic:{SEMANTIC_CODES - 1}|>"],
        "semantic_start_token_id": ids["<|semantic:0|>"],
        "text_config": {
            **common,
            "attention_qk_norm": True,
            "max_seq_len": 32768,
            "model_type": "fish_qwen3",
            "n_layer": shape.layers,
            "tie_word_embeddings": True,
            "vocab_size": vocabulary,
        },
    }


# The tokens after the text vocabulary, in the order of their ids (151643 to 155773 as released).
SPECIAL_TOKENS = (
    *QWEN_ADDED,
    *(f"<|{name}|>" for name in ("pad", "phoneme_start", "phoneme_end", "text", "voice", "interleave")),
    *(f"<|{name}|>" for name in ("audio_start", "audio_end", "audio_pad")),
    *(f"<|semantic:{code}|>" for code in range(SEMANTIC_CODES)),
)


def write_tokenizer(folder: Path, text_tokens: int | None) -> dict[str, int]:
    """Write tokenizer.json.

    Args:
        folder: exists.
        text_tokens: number of text tokens; those that the merges leave over are filled with tokens that no text makes.
            None: no filling.

    Returns:
        The ids of the special tokens.
    """
    merges = train_merges()
    tokens = vocabulary_of(merges, text_tokens)
    tokenizer = qwen_tokenizer(tokens, merges)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    return {token: len(tokens) + index for index, token in enumerate(SPECIAL_TOKENS)}
