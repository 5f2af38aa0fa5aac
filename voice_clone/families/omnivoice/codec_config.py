"""The codec's configuration, `audio_tokenizer/config.json`. Needs no torch.

The codec is transformers' `HiggsAudioV2TokenizerModel`: a DAC for the sound, a HuBERT for what is said, and one
residual quantizer for both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voice_clone.checkpoint_folder import check_fixed, parse, read_json
from voice_clone.errors import CheckpointError
from voice_clone.families.omnivoice.config import CODEBOOKS, CODES, FRAME_RATE

FOLDER = "audio_tokenizer"
CONFIG_FILE = f"{FOLDER}/config.json"

SAMPLE_RATE = 24000  # Hz
FRAME_SAMPLES = SAMPLE_RATE // FRAME_RATE
SEMANTIC_RATE = 16000  # Hz of HuBERT's input

# The released codec has these values, and the networks compute no others.
_FIXED: dict[str, Any] = {
    "model_type": "higgs_audio_v2_tokenizer",
    "sample_rate": SAMPLE_RATE,
    "semantic_sample_rate": SEMANTIC_RATE,
    "codebook_size": CODES,
    "kernel_size": 3,
    "unit_kernel_size": 3,
    "channel_ratios": [1, 1],
    "strides": [1, 1],
    "block_dilations": [1, 1],
}
_FIXED_HUBERT: dict[str, Any] = {
    "hidden_act": "gelu",
    "feat_extract_activation": "gelu",
    "feat_extract_norm": "group",
    "feat_proj_layer_norm": True,
    "conv_bias": False,
    "conv_pos_batch_norm": False,
    "do_stable_layer_norm": False,
}


@dataclass(frozen=True)
class AcousticConfig:
    """The DAC's sizes. Widths double with each ratio of the encoder, and halve with each of the decoder."""

    encoder_hidden_size: int
    decoder_hidden_size: int
    hidden_size: int
    downsampling_ratios: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]


@dataclass(frozen=True)
class SemanticConfig:
    """HuBERT's sizes. If a file leaves one out, it is that of the base model."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    layer_norm_eps: float = 1e-5
    conv_dim: tuple[int, ...] = (512,) * 7
    conv_kernel: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)
    conv_stride: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)
    num_conv_pos_embeddings: int = 128
    num_conv_pos_embedding_groups: int = 16


@dataclass(frozen=True)
class CodecConfig:
    """Sizes of the codec.

    Attributes:
        downsample_factor: samples at `SEMANTIC_RATE` of a step of HuBERT.
    """

    acoustic_model_config: AcousticConfig
    semantic_model_config: SemanticConfig
    codebook_dim: int
    downsample_factor: int

    @property
    def latent(self) -> int:
        """The size of a quantized vector: the sound, followed by what is said."""
        return self.acoustic_model_config.hidden_size + self.semantic_model_config.hidden_size

    @property
    def semantic_steps(self) -> int:
        """Steps of HuBERT in a frame. Only the first counts."""
        return FRAME_SAMPLES * SEMANTIC_RATE // SAMPLE_RATE // self.downsample_factor


def load_codec_config(folder: Path) -> CodecConfig:
    """Read and check the codec's configuration in the checkpoint in `folder`.

    Raises:
        CheckpointError: a file is missing or malformed, or the networks would not compute such a codec.
    """
    values = read_json(folder, CONFIG_FILE)
    check_fixed(values, _FIXED, f"{CONFIG_FILE}: ")
    config = parse(CodecConfig, values, CONFIG_FILE, positive=True)
    check_fixed(values["semantic_model_config"], _FIXED_HUBERT, f"{CONFIG_FILE}: semantic_model_config.")
    _check_rates(config)
    bandwidths = values.get("target_bandwidths")
    if not isinstance(bandwidths, list) or not bandwidths or not isinstance(bandwidths[-1], (int, float)):
        raise CheckpointError(f"{CONFIG_FILE}: target_bandwidths is {bandwidths!r}; expected a list of numbers")
    codebooks = int(1000 * bandwidths[-1] // (FRAME_RATE * math.log2(CODES)))
    if codebooks != CODEBOOKS:
        raise CheckpointError(f"{CONFIG_FILE}: target_bandwidths make {codebooks} codebooks; OmniVoice has {CODEBOOKS}")
    return config


def _check_rates(config: CodecConfig) -> None:
    """Check that all parts make frames of equally many samples, and that sizes divide."""
    sound, semantic = config.acoustic_model_config, config.semantic_model_config
    for name in ("downsampling_ratios", "upsampling_ratios"):
        ratios = getattr(sound, name)
        if math.prod(ratios) != FRAME_SAMPLES:
            raise CheckpointError(
                f"{CONFIG_FILE}: {name} {list(ratios)} make {math.prod(ratios)} samples a frame, not {FRAME_SAMPLES}; "
                "OmniVoice's own file names all five ratios"
            )
    if sound.decoder_hidden_size % 2 ** len(sound.upsampling_ratios):
        raise CheckpointError(f"{CONFIG_FILE}: decoder_hidden_size must halve with each of upsampling_ratios")
    if math.prod(semantic.conv_stride) != config.downsample_factor:
        raise CheckpointError(f"{CONFIG_FILE}: conv_stride must make downsample_factor, {config.downsample_factor}")
    if not len(semantic.conv_dim) == len(semantic.conv_kernel) == len(semantic.conv_stride):
        raise CheckpointError(f"{CONFIG_FILE}: conv_dim, conv_kernel and conv_stride must be of one length")
    frame = FRAME_SAMPLES * SEMANTIC_RATE // SAMPLE_RATE
    if frame % config.downsample_factor:
        raise CheckpointError(f"{CONFIG_FILE}: downsample_factor must divide {frame}, the samples of a frame")
    for name in ("num_attention_heads", "num_conv_pos_embedding_groups"):
        if semantic.hidden_size % getattr(semantic, name):
            raise CheckpointError(f"{CONFIG_FILE}: {name} must divide hidden_size, {semantic.hidden_size}")
