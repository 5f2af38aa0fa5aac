"""Voxtral TTS's configuration: `params.json` of a checkpoint folder. Needs no torch.

A field that the file leaves out has the default of the official code (vllm-omni 0.30.0: in models/voxtral_tts
`voxtral_tts_audio_generation.py` and `voxtral_tts_audio_tokenizer.py`, and `parsers/voxtral_tts.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voice_clone.checkpoint_folder import check_fixed, multiple_of, parse, read_recognised, weight_names
from voice_clone.errors import CheckpointError
from voice_clone.families.voxtral.family import CARD

CONFIG_FILE = "params.json"
MODEL, VOICES = (each.name for each in CARD.weights)
VOICE_FOLDER = CARD.weights[1].pickles

ENCODER_PARTS = ("audio_tokenizer.input_proj.", "audio_tokenizer.encoder_blocks.")
NO_ENCODER = "this checkpoint has no encoder weights (audio_tokenizer.encoder_blocks); use one of the presets"

EMPTY, END = 0, 1  # special ids of each codebook, before its codes
SPECIAL_IDS = 2

# What the released checkpoint has, and the only thing that the networks compute.
_CODEC_FIXED: dict[str, Any] = {
    "channels": 1,
    "causal": True,
    "conv_weight_norm": True,
    "half_attn_window_upon_downsampling": True,
    "qk_norm": True,
    "use_biases": False,
    "layer_scale": True,
}


@dataclass(frozen=True)
class FlowConfig:
    """`acoustic_transformer_args`: the transformer that makes acoustic codes by flow matching.

    Attributes:
        input_dim: of the backbone's hidden states.
        n_decoding_steps: of Euler's method.
    """

    input_dim: int
    dim: int = 768
    n_layers: int = 3
    head_dim: int = 128
    hidden_dim: int = 2048
    n_heads: int = field(default=6, metadata=multiple_of("n_kv_heads"))
    n_kv_heads: int = 2
    norm_eps: float = 1e-5
    n_decoding_steps: int = 7


@dataclass(frozen=True)
class AudioConfig:
    """`audio_model_args`: the frames that the backbone reads and the head makes.

    Attributes:
        semantic_codebook_size: codes of codebook 0.
        acoustic_codebook_size: levels of each acoustic codebook.
        n_acoustic_codebook: acoustic codebooks.
    """

    semantic_codebook_size: int
    acoustic_codebook_size: int
    n_acoustic_codebook: int
    acoustic_transformer_args: FlowConfig


@dataclass(frozen=True)
class CodecConfig:
    """`audio_tokenizer_args`: the codec. Lists of numbers are texts there, such as `2,2,2,2`.

    Attributes:
        pretransform_patch_size: samples that are one step of the signal.
        attn_sliding_window_size: positions before its own that a position sees at the rate of patches; half of them at
            half the rate.
        voice: the checkpoint's own voices, by name.
    """

    sampling_rate: int = 24000
    pretransform_patch_size: int = 240
    patch_proj_kernel_size: int = 7
    semantic_codebook_size: int = 8192
    semantic_dim: int = 256
    acoustic_codebook_size: int = 21
    acoustic_dim: int = 36
    attn_sliding_window_size: int = 16
    dim: int = 1024
    hidden_dim: int = 4096
    head_dim: int = 128
    n_heads: int = field(default=8, metadata=multiple_of("n_kv_heads"))
    n_kv_heads: int = 8
    qk_norm_eps: float = 1e-6
    norm_eps: float = 1e-2
    encoder_transformer_lengths_str: str = "2,2,2,2"
    encoder_convs_kernels_str: str = "4,4,4,3"
    encoder_convs_strides_str: str = "2,2,2,1"
    decoder_transformer_lengths_str: str = "2,2,2,2"
    decoder_convs_kernels_str: str = "3,4,4,4"
    decoder_convs_strides_str: str = "1,2,2,2"
    voice: Mapping[str, int] = field(default_factory=dict)

    @property
    def latent_dim(self) -> int:
        return self.semantic_dim + self.acoustic_dim

    @property
    def encoder_blocks(self) -> tuple[tuple[int, int, int], ...]:
        """Of each block: layers of its transformer, kernel size and stride of the convolution behind that."""
        return self._blocks("encoder")

    @property
    def decoder_blocks(self) -> tuple[tuple[int, int, int], ...]:
        """Of each block: layers of its transformer, kernel size and stride of the convolution before that."""
        return self._blocks("decoder")

    @property
    def rate(self) -> int:
        """Patches of a frame."""
        return math.prod(stride for _, _, stride in self.decoder_blocks)

    @property
    def frame_samples(self) -> int:
        return self.rate * self.pretransform_patch_size

    def _blocks(self, part: str) -> tuple[tuple[int, int, int], ...]:
        names = (f"{part}_transformer_lengths_str", f"{part}_convs_kernels_str", f"{part}_convs_strides_str")
        columns = [_numbers(name, getattr(self, name)) for name in names]
        if len({len(column) for column in columns}) != 1:
            raise CheckpointError(f"{CONFIG_FILE}: audio_tokenizer_args: {', '.join(names)} must be of one length")
        return tuple(zip(*columns, strict=True))


@dataclass(frozen=True)
class Multimodal:
    """All about audio."""

    audio_model_args: AudioConfig
    audio_tokenizer_args: CodecConfig


@dataclass(frozen=True)
class VoxtralConfig:
    """Everything the stages need to know of a checkpoint. The fields beside `multimodal` are the backbone's."""

    dim: int
    n_layers: int
    head_dim: int
    hidden_dim: int
    n_heads: int = field(metadata=multiple_of("n_kv_heads"))
    n_kv_heads: int
    norm_eps: float
    vocab_size: int
    rope_theta: float
    multimodal: Multimodal

    @property
    def audio(self) -> AudioConfig:
        return self.multimodal.audio_model_args

    @property
    def flow(self) -> FlowConfig:
        return self.audio.acoustic_transformer_args

    @property
    def codec(self) -> CodecConfig:
        return self.multimodal.audio_tokenizer_args

    @property
    def codebooks(self) -> int:
        """K, the semantic one and the acoustic ones."""
        return 1 + self.audio.n_acoustic_codebook

    @property
    def code_limits(self) -> tuple[int, ...]:
        return self.audio.semantic_codebook_size, *[self.audio.acoustic_codebook_size] * self.audio.n_acoustic_codebook

    @property
    def id_limits(self) -> tuple[int, ...]:
        """Ids of each codebook, as the backbone reads them: the special ones, then the codes."""
        return tuple(limit + SPECIAL_IDS for limit in self.code_limits)

    @property
    def frame_rate(self) -> float:
        """Frames a second."""
        return self.codec.sampling_rate / self.codec.frame_samples

    @property
    def presets(self) -> tuple[str, ...]:
        """The names of the checkpoint's own voices, in their order."""
        return tuple(sorted(self.codec.voice, key=lambda name: self.codec.voice[name]))


def load_config(folder: Path) -> VoxtralConfig:
    """Read and check the configuration of the checkpoint in `folder`.

    Raises:
        CheckpointError: a file is missing or malformed, or this is no checkpoint of Voxtral TTS.
    """
    values = read_recognised(folder, CARD.recognised_by)
    config = parse(VoxtralConfig, values, CONFIG_FILE, positive=True)
    parts = values["multimodal"]
    check_fixed(parts["audio_tokenizer_args"], _CODEC_FIXED, f"{CONFIG_FILE}: audio_tokenizer_args.", null=True)
    check_fixed(
        parts["audio_model_args"]["acoustic_transformer_args"],
        {"use_biases": False, "input_dim": config.dim, "dim": config.dim},
        f"{CONFIG_FILE}: acoustic_transformer_args.",
        null=True,
    )
    _check(config)
    return config


def _check(config: VoxtralConfig) -> None:
    audio, codec = config.audio, config.codec
    theirs = codec.semantic_codebook_size, codec.acoustic_codebook_size, codec.acoustic_dim
    ours = audio.semantic_codebook_size, audio.acoustic_codebook_size, audio.n_acoustic_codebook
    if theirs != ours:
        raise CheckpointError(
            f"{CONFIG_FILE}: audio_model_args and audio_tokenizer_args disagree about codebooks: {ours}, {theirs}"
        )
    encoder = [stride for _, _, stride in codec.encoder_blocks]
    decoder = [stride for _, _, stride in codec.decoder_blocks]
    if not {*encoder, *decoder} <= {1, 2} or math.prod(encoder) != math.prod(decoder) or decoder[0] != 1:
        raise CheckpointError(
            f"{CONFIG_FILE}: audio_tokenizer_args: strides must be 1 or 2, the decoder's first 1, and encoder and "
            f"decoder must change the rate alike; got {encoder} and {decoder}"
        )
    window = codec.attn_sliding_window_size
    if window % codec.rate:
        raise CheckpointError(
            f"{CONFIG_FILE}: audio_tokenizer_args.attn_sliding_window_size is {window}; "
            f"it must be a multiple of {codec.rate}"
        )
    if codec.rate < codec.patch_proj_kernel_size:
        raise CheckpointError(
            f"{CONFIG_FILE}: audio_tokenizer_args.patch_proj_kernel_size is {codec.patch_proj_kernel_size}; "
            f"it must not be above the {codec.rate} patches of a frame"
        )


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(number) for number in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise CheckpointError(f"{CONFIG_FILE}: audio_tokenizer_args.{name} is {text!r}; it must be like '2,2,2,2'")
    return numbers


def has_encoder(folder: Path) -> bool:
    """Whether the codec's encoder is among the weights of a checkpoint. The public checkpoint lacks it.

    Raises:
        CheckpointError: a weight file is missing or cut short.
    """
    return any(name.startswith(ENCODER_PARTS) for name in weight_names(folder, MODEL))
