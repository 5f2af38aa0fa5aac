"""Fish Speech S2 Pro's configuration: `config.json` of a checkpoint folder, and the codec's sizes. Needs no torch.

`config.json` describes the two transformers. A field that it leaves out has the default of the official code
(fish-speech, `llama.py`). The codec has no such file: what all codecs of this family share stands here, and the rest
is read from the shapes of its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voice_clone.checkpoint_folder import check_fixed, parse, read_recognised, sizes_of
from voice_clone.errors import CheckpointError
from voice_clone.families.fish_speech.family import CARD

CONFIG_FILE = "config.json"
MODEL, CODEC = (each.name for each in CARD.weights)

SAMPLE_RATE = 44100  # Hz, of the codec
FRAME_SAMPLES = 2048
FRAME_RATE = SAMPLE_RATE / FRAME_SAMPLES  # 21.53 Hz
ENCODER_RATES, DECODER_RATES, QUANTIZER_RATES = (2, 4, 8, 8), (8, 8, 4, 2), (2, 2)
ENCODER_WINDOW, QUANTIZER_WINDOW = 512, 128
HEAD_DIM, ROPE_THETA, NORM_EPS = 64, 10000.0, 1e-5  # of the codec's transformers

# Each block of the encoder doubles the channels, up to a number of whole heads; each of the decoder halves them.
_CHANNEL_UNITS = {"encoder_dim": HEAD_DIM >> len(ENCODER_RATES), "decoder_dim": 16}

RESIDUAL_CODES = 1024  # codes of a codebook after the first that exist; the fast transformer's head has rows for more

# What the fast transformer takes from the slow one if `audio_decoder_config` leaves it out.
_INHERITED = (
    *("dim", "n_head", "n_local_heads", "head_dim", "intermediate_size"),
    *("attention_qk_norm", "attention_qkv_bias", "attention_o_bias"),
)
_NO_BIASES = {"attention_qkv_bias": False, "attention_o_bias": False}


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of the slow (`text_config`) or the fast transformer (`audio_decoder_config`)."""

    vocab_size: int
    n_layer: int
    n_head: int
    dim: int
    intermediate_size: int
    n_local_heads: int = -1
    head_dim: int = 0
    rope_base: float = 10000.0
    norm_eps: float = 1e-5
    attention_qk_norm: bool = False
    num_codebooks: int = 10

    @property
    def kv_heads(self) -> int:
        return self.n_head if self.n_local_heads == -1 else self.n_local_heads

    @property
    def head_size(self) -> int:
        return self.head_dim or self.dim // self.n_head


@dataclass(frozen=True)
class FishSpeechConfig:
    """Everything the stages need to know of a checkpoint but the codec.

    Attributes:
        text_config: of the slow transformer.
        audio_decoder_config: of the fast one; its vocabulary is the first codebook's size.
        semantic_start_token_id, semantic_end_token_id: the tokens of the first codebook's codes.
        eos_token_id: the token that ends speech; -1: not named.
    """

    text_config: TransformerConfig
    audio_decoder_config: TransformerConfig
    semantic_start_token_id: int
    semantic_end_token_id: int
    eos_token_id: int = -1

    @property
    def codebooks(self) -> int:
        return self.audio_decoder_config.num_codebooks

    @property
    def semantic_codes(self) -> int:
        return self.audio_decoder_config.vocab_size

    @property
    def code_limits(self) -> tuple[int, ...]:
        """Codes of each codebook lie below its limit."""
        return self.semantic_codes, *[min(RESIDUAL_CODES, self.semantic_codes)] * (self.codebooks - 1)


@dataclass(frozen=True)
class CodecConfig:
    """Sizes of a codec.

    Attributes:
        encoder_dim, decoder_dim: channels at the sample rate, and at the decoder's beginning.
        encoder_layers, encoder_intermediate: of the encoder's transformer.
        quantizer_layers, quantizer_intermediate: of the transformers before and behind the quantizer.
        semantic_codes, residual_codes: codes of the first codebook and of each other one.
        residual_books: codebooks after the first.
        codebook_dim: of a code's vector.
    """

    encoder_dim: int
    decoder_dim: int
    encoder_layers: int
    encoder_intermediate: int
    quantizer_layers: int
    quantizer_intermediate: int
    semantic_codes: int
    residual_codes: int
    residual_books: int
    codebook_dim: int

    @property
    def latent_dim(self) -> int:
        return int(self.encoder_dim * 2 ** len(ENCODER_RATES))

    @property
    def code_limits(self) -> tuple[int, ...]:
        return self.semantic_codes, *[self.residual_codes] * self.residual_books


def load_config(folder: Path) -> FishSpeechConfig:
    """Read and check the configuration of the checkpoint in `folder`.

    Raises:
        CheckpointError: a file is missing or malformed, or this is no S2 Pro checkpoint.
    """
    values = read_recognised(folder, CARD.recognised_by)
    values["audio_decoder_config"] = _complete_fast_config(
        values.get("text_config"), values.get("audio_decoder_config")
    )
    config = parse(FishSpeechConfig, values, CONFIG_FILE)
    check_fixed(
        values["text_config"], {**_NO_BIASES, "tie_word_embeddings": True}, f"{CONFIG_FILE}: text_config.", null=True
    )
    check_fixed(values["audio_decoder_config"], _NO_BIASES, f"{CONFIG_FILE}: audio_decoder_config.", null=True)
    slow, fast = config.text_config, config.audio_decoder_config
    if fast.dim != slow.dim:
        raise CheckpointError(f"{CONFIG_FILE}: the transformers' sizes {slow.dim} and {fast.dim} differ; not supported")
    if fast.attention_qk_norm:
        raise CheckpointError(f"{CONFIG_FILE}: audio_decoder_config.attention_qk_norm is set; not supported")
    tokens = config.semantic_end_token_id - config.semantic_start_token_id + 1
    if tokens != config.semantic_codes:
        raise CheckpointError(
            f"{CONFIG_FILE}: {tokens} semantic tokens, but audio_decoder_config.vocab_size is {config.semantic_codes}"
        )
    if config.semantic_end_token_id >= slow.vocab_size:
        raise CheckpointError(f"{CONFIG_FILE}: semantic_end_token_id lies beyond text_config.vocab_size")
    return config


def _complete_fast_config(slow: Any, fast: Any) -> Any:
    """`audio_decoder_config`, with the slow transformer's values where it has none."""
    if not isinstance(slow, dict) or not isinstance(fast, dict):
        return fast  # `parse` refuses it
    given = {name: value for name, value in fast.items() if value is not None}
    return {name: slow.get(name) for name in _INHERITED} | given


_ENCODER, _POST = "encoder.block.4.block.5.layers", "quantizer.post_module.layers"
_SEMANTIC, _RESIDUAL = "quantizer.semantic_quantizer.quantizers.0.codebook.weight", "quantizer.quantizer.quantizers"
_SIZES = {
    "encoder_dim": ("encoder.block.0.conv.bias", 1, 0),
    "decoder_dim": ("decoder.model.0.conv.bias", 1, 0),
    "encoder_intermediate": (f"{_ENCODER}.0.feed_forward.w1.weight", 2, 0),
    "quantizer_intermediate": (f"{_POST}.0.feed_forward.w1.weight", 2, 0),
    "semantic_codes": (_SEMANTIC, 2, 0),
    "residual_codes": (f"{_RESIDUAL}.0.codebook.weight", 2, 0),
    "codebook_dim": (_SEMANTIC, 2, 1),
}
_COUNTS = {"encoder_layers": _ENCODER, "quantizer_layers": _POST, "residual_books": _RESIDUAL}


def codec_config(shapes: Mapping[str, tuple[int, ...]]) -> CodecConfig:
    """The sizes of the codec that has tensors of these names and shapes.

    Raises:
        CheckpointError: it is no codec of this family. The message names a tensor that is missing or wrong.
    """
    found = sizes_of(shapes, "the codec", _SIZES, _COUNTS)
    for name, unit in _CHANNEL_UNITS.items():
        if found[name] % unit:
            tensor, _, _ = _SIZES[name]
            raise CheckpointError(f"the codec: {tensor} has {found[name]} rows; expected a multiple of {unit}")
    return CodecConfig(**found)
