"""Random weights of the codec in the official format: `audio_tokenizer/`.

The recipe: a layer's output has about the power of its input, residual branches add a fraction, and the waveform stays
far from its limits. Names and shapes are those of the released file, with the tensors that only training uses.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.families.gains import VECTOR, Gains, around, spread
from tools.families.weight_files import Shapes, noise_of, write_json, write_weights
from voice_clone.families.omnivoice.codec_checkpoint import CodecCheckpoint
from voice_clone.families.omnivoice.codec_config import (
    CONFIG_FILE,
    FOLDER,
    SAMPLE_RATE,
    SEMANTIC_RATE,
    AcousticConfig,
    CodecConfig,
    SemanticConfig,
)
from voice_clone.families.omnivoice.config import CODEBOOKS, CODEC, CODES
from voice_clone.families.omnivoice.networks.codec_decoder import CodecDecoder
from voice_clone.families.omnivoice.networks.voice_encoder import VoiceEncoder

RATIOS = (8, 5, 4, 2, 3)
RELEASED_SOUND = AcousticConfig(64, 1024, 256, RATIOS, RATIOS)
TINY_SPEECH = SemanticConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    conv_dim=(16,) * 7,
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
)
CODECS = {
    "tiny": CodecConfig(AcousticConfig(4, 64, 16, RATIOS, RATIOS), TINY_SPEECH, codebook_dim=8, downsample_factor=320),
    "released-2": CodecConfig(RELEASED_SOUND, SemanticConfig(num_hidden_layers=2), 64, 320),
    "released": CodecConfig(RELEASED_SOUND, SemanticConfig(), 64, 320),
}

_TABLE = Gains(
    kinds=(
        (r"inited$", lambda noise, _: torch.ones(noise.shape)),
        (r"cluster_size$", lambda noise, _: 1 + noise.abs()),
        (r"(\.alpha|norm\.weight)$", around(1, 0.1)),
        (r"(embed|embed_avg|original1)$", spread()),
        (VECTOR, spread(0.05)),
    ),
    gains=(
        (r"^acoustic_encoder\.conv1\.", 8.0),  # speech has an RMS near 0.1
        (r"^acoustic_decoder\.conv2\.", 0.04),  # the waveform: far from the limits
        (r"\.res_units?[.\d]*\.conv2\.", 0.3),  # residual branches
        (r"\.(out_proj|output_dense)\.", 0.5),
        (r"\.project_out\.", 1 / math.sqrt(CODEBOOKS)),  # as many add up
    ),
    fan_in=lambda name, sizes: 2 * sizes[0] if ".conv_t1." in name else math.prod(sizes[1:]),  # two taps of it meet
    prefix="audio_tokenizer ",
)


def make_audio_tokenizer(shape: str, seed: int, folder: Path) -> None:
    """Write the folder `audio_tokenizer` into `folder`, in fp32 as released. Same arguments, same bytes.

    Args:
        shape: a key of `CODECS`.
        seed: of all weights.
        folder: that is there.
    """
    (folder / FOLDER).mkdir()
    write_json(folder / CONFIG_FILE, _config(CODECS[shape]))
    channels = CODECS[shape].semantic_model_config.hidden_size

    def tensor(name: str, size: tuple[int, ...]) -> Tensor:
        if name.endswith("original0"):  # of each place of HuBERT's wide kernel, of which all add up
            return math.sqrt(channels / size[2]) * (0.5 + 0.05 * noise_of(name, size, seed))
        return _TABLE(name, size, seed)

    write_weights(folder, codec_shapes(folder), tensor, "fp32", 1, CODEC)


def _config(config: CodecConfig) -> dict[str, Any]:
    """The file's content, as far as anything depends on it."""
    return {
        "model_type": "higgs_audio_v2_tokenizer",
        "sample_rate": SAMPLE_RATE,
        "semantic_sample_rate": SEMANTIC_RATE,
        "target_bandwidths": [0.5, 1, 1.5, 2],
        "codebook_size": CODES,
        "codebook_dim": config.codebook_dim,
        "downsample_factor": config.downsample_factor,
        "acoustic_model_config": {"model_type": "dac", **asdict(config.acoustic_model_config)},
        "semantic_model_config": {
            "model_type": "hubert",
            "mask_time_prob": 0.0,
            **asdict(config.semantic_model_config),
        },
    }


def codec_shapes(folder: Path) -> Shapes:
    """Names and shapes of all tensors; the folder has the codec's configuration."""
    checkpoint = CodecCheckpoint(folder)
    with torch.device("meta"):
        encoder, decoder = VoiceEncoder(checkpoint.config), CodecDecoder(checkpoint.config)
    shapes = checkpoint.sources(encoder) | checkpoint.sources(decoder)
    return dict(sorted((shapes | _training_alone(checkpoint.config)).items()))


def _training_alone(config: CodecConfig) -> Shapes:
    """Tensors of the file that nothing computes with."""
    size = config.semantic_model_config.hidden_size
    shapes: Shapes = {"fc1.weight": (size, config.latent), "fc1.bias": (size,)}
    for number in range(CODEBOOKS):
        book = f"quantizer.quantizers.{number}.codebook"
        shapes[f"{book}.inited"], shapes[f"{book}.cluster_size"] = (1,), (CODES,)
        shapes[f"{book}.embed_avg"] = (CODES, config.codebook_dim)
    for name in ("conv1", "conv2"):
        shapes[f"decoder_semantic.{name}.weight"] = (size, size, 3)
    for number in range(2):
        block = f"decoder_semantic.conv_blocks.{number}"
        shapes[f"{block}.conv.weight"], shapes[f"{block}.conv.bias"] = (size, size, 3), (size,)
        for unit in range(2):
            shapes[f"{block}.res_units.{unit}.conv1.weight"] = (size, size, 3)
            shapes[f"{block}.res_units.{unit}.conv2.weight"] = (size, size, 1)
    return shapes
