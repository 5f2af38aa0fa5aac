"""Qwen3-TTS configuration, read from the official files of a checkpoint folder.

`config.json` describes the talker and the speaker encoder, `speech_tokenizer/config.json` the codec,
`generation_config.json` the sampling defaults. A field that the released files leave out has the default of
the official configuration class (qwen-tts 0.1.1, `configuration_qwen3_tts.py`,
`configuration_qwen3_tts_tokenizer_v2.py`; transformers `MimiConfig`). This module needs no torch.

There are three kinds of checkpoints, each a family of models of its own: Base clones voices (`qwen3_tts`), CustomVoice
has built-in speakers (`qwen3_tts_custom_voice`), VoiceDesign makes voices of descriptions (`qwen3_tts_voice_design`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from voice_clone.checkpoint_folder import check_folder, parse, read_json
from voice_clone.errors import CheckpointError
from voice_clone.families.qwen3_tts.family import SamplingDefaults

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
CODEC_FOLDER = "speech_tokenizer"

Kind = Literal["base", "custom_voice", "voice_design"]
"""`tts_model_type` of config.json."""


class _HeadSize:
    """Where `head_dim` is left out (0), the heads share the hidden size."""

    head_dim: int
    hidden_size: int
    num_attention_heads: int

    def __post_init__(self) -> None:
        if self.head_dim == 0:
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)


@dataclass(frozen=True)
class SpeakerEncoderConfig:
    """Mel front end and ECAPA-TDNN (Desplanques et al. 2020)."""

    mel_dim: int = 128
    enc_dim: int = 1024  # the speaker embedding's dimension = the talker's hidden size
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128
    sample_rate: int = 24000


@dataclass(frozen=True)
class CodePredictorConfig:
    """The small transformer that predicts codebooks 1..15 of a frame."""

    vocab_size: int = 2048
    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: int = 5
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    head_dim: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    attention_bias: bool = False
    num_code_groups: int = 32


@dataclass(frozen=True)
class TalkerConfig(_HeadSize):
    """The Qwen3 transformer that predicts codebook 0, one frame a step."""

    text_vocab_size: int
    head_dim: int = 0
    code_predictor_config: CodePredictorConfig = field(default_factory=CodePredictorConfig)
    vocab_size: int = 3072
    hidden_size: int = 1024
    intermediate_size: int = 2048
    num_hidden_layers: int = 20
    num_attention_heads: int = 16
    num_key_value_heads: int = 2
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    attention_bias: bool = False
    num_code_groups: int = 32
    text_hidden_size: int = 2048
    codec_eos_token_id: int = 4198
    codec_think_id: int = 4202
    codec_nothink_id: int = 4203
    codec_think_bos_id: int = 4204
    codec_think_eos_id: int = 4205
    codec_pad_id: int = 4196
    codec_bos_id: int = 4197
    codec_language_id: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CodecEncoderConfig(_HeadSize):
    """Mimi encoder: SEANet, transformer, split RVQ (Defossez et al. 2024)."""

    audio_channels: int = 1
    hidden_size: int = 512
    num_filters: int = 64
    num_residual_layers: int = 1
    upsampling_ratios: tuple[int, ...] = (8, 6, 5, 4)
    kernel_size: int = 7
    last_kernel_size: int = 3
    residual_kernel_size: int = 3
    dilation_growth_rate: int = 2
    compress: int = 2
    codebook_size: int = 2048
    codebook_dim: int = 256
    num_quantizers: int = 32
    num_semantic_quantizers: int = 1
    num_hidden_layers: int = 8
    intermediate_size: int = 2048
    num_attention_heads: int = 8
    num_key_value_heads: int = 8
    head_dim: int = 0
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0


@dataclass(frozen=True)
class CodecDecoderConfig(_HeadSize):
    """code2wav: split RVQ, sliding-window transformer, ConvNeXt upsampling, SnakeBeta decoder."""

    codebook_dim: int
    head_dim: int = 0
    codebook_size: int = 2048
    hidden_size: int = 1024
    latent_dim: int = 1024
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    attention_bias: bool = False
    sliding_window: int = 72
    intermediate_size: int = 3072
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    num_hidden_layers: int = 8
    num_quantizers: int = 16
    upsample_rates: tuple[int, ...] = (8, 5, 4, 3)
    upsampling_ratios: tuple[int, ...] = (2, 2)
    decoder_dim: int = 1536


@dataclass(frozen=True)
class CodecConfig:
    """`speech_tokenizer/config.json`."""

    encoder_config: CodecEncoderConfig
    decoder_config: CodecDecoderConfig
    encoder_valid_num_quantizers: int = 16
    input_sample_rate: int = 24000
    output_sample_rate: int = 24000
    decode_upsample_rate: int = 1920  # samples a frame


@dataclass(frozen=True)
class Qwen3TTSConfig:
    """Everything the stages need to know of a checkpoint.

    Attributes:
        speakers: the built-in speakers' codec tokens by name, in lower case; CustomVoice has some.
        dialects: of speakers that speak one, its key in `codec_language_id`.
    """

    talker: TalkerConfig
    speaker_encoder: SpeakerEncoderConfig
    codec: CodecConfig
    sampling: SamplingDefaults
    tts_pad_token_id: int = 151671
    tts_bos_token_id: int = 151672
    tts_eos_token_id: int = 151673
    kind: Kind = "base"
    tts_model_size: str = ""
    speakers: Mapping[str, int] = field(default_factory=dict)
    dialects: Mapping[str, str] = field(default_factory=dict)

    @property
    def follows_instructions(self) -> bool:
        """Whether `instruct` has an effect: Base was not trained for it, nor the CustomVoice of 0.6B."""
        return self.kind == "voice_design" or (self.kind == "custom_voice" and self.tts_model_size != "0b6")

    @property
    def languages(self) -> tuple[str, ...]:
        """Names a request may use, lower case, `auto` first; dialects are not languages."""
        return ("auto", *(name for name in self.talker.codec_language_id if "dialect" not in name))


def load_config(folder: Path) -> Qwen3TTSConfig:
    """Read and check the configuration of the checkpoint in `folder`.

    Raises:
        CheckpointError: a file is missing or malformed, or this is not a checkpoint of the 12 Hz models.
    """
    check_folder(folder)
    config = read_json(folder, CONFIG_FILE)
    codec = read_json(folder, f"{CODEC_FOLDER}/{CONFIG_FILE}")
    sampling = read_json(folder, GENERATION_FILE)
    sampling["subtalker_do_sample"] = sampling.get("subtalker_dosample")  # as the official package spells it
    if config.get("model_type") != "qwen3_tts":
        raise CheckpointError(f"{CONFIG_FILE}: model_type is {config.get('model_type')!r}, not 'qwen3_tts'")
    if config.get("tts_model_type") not in get_args(Kind):
        raise CheckpointError(
            f"{CONFIG_FILE}: tts_model_type is {config.get('tts_model_type')!r}; known are {', '.join(get_args(Kind))}"
        )
    if config.get("tokenizer_type") != "qwen3_tts_tokenizer_12hz":
        raise CheckpointError(
            f"{CONFIG_FILE}: tokenizer_type is {config.get('tokenizer_type')!r}, not 'qwen3_tts_tokenizer_12hz'"
        )
    talker = parse(TalkerConfig, config.get("talker_config", {}), f"{CONFIG_FILE}: talker_config")
    speaker = parse(SpeakerEncoderConfig, config.get("speaker_encoder_config", {}), CONFIG_FILE)
    parsed = Qwen3TTSConfig(
        talker=talker,
        speaker_encoder=speaker,
        codec=parse(CodecConfig, codec, f"{CODEC_FOLDER}/{CONFIG_FILE}"),
        sampling=parse(SamplingDefaults, sampling, GENERATION_FILE),
        kind=config["tts_model_type"],
        **_speakers(config["talker_config"]),
        **{key: config[key] for key in (*_TEXT_TOKENS, "tts_model_size") if config.get(key) is not None},
    )
    _check(parsed)
    _refuse_variants(config["talker_config"], f"{CONFIG_FILE}: talker_config")
    predictor = config["talker_config"].get("code_predictor_config") or {}
    _refuse_variants(predictor, f"{CONFIG_FILE}: code_predictor_config")
    return parsed


_TEXT_TOKENS = ("tts_pad_token_id", "tts_bos_token_id", "tts_eos_token_id")
_CODEC_TOKENS = (
    *("codec_eos_token_id", "codec_think_id", "codec_nothink_id", "codec_think_bos_id", "codec_think_eos_id"),
    *("codec_pad_id", "codec_bos_id"),
)


def _speakers(talker: Mapping[str, Any]) -> dict[str, Any]:
    """The built-in speakers and their dialects; `spk_is_dialect` has false for those that speak none."""
    tokens, dialects = talker.get("spk_id") or {}, talker.get("spk_is_dialect") or {}
    if not isinstance(tokens, dict) or not all(type(token) is int for token in tokens.values()):
        raise CheckpointError(f"{CONFIG_FILE}: talker_config: spk_id must be the speakers' tokens by name")
    if not isinstance(dialects, dict) or not all(
        value is False or isinstance(value, str) for value in dialects.values()
    ):
        raise CheckpointError(f"{CONFIG_FILE}: talker_config: spk_is_dialect must be a dialect or false, by speaker")
    spoken = {name.lower(): dialect for name, dialect in dialects.items() if dialect}
    return {"speakers": {name.lower(): token for name, token in tokens.items()}, "dialects": spoken}


def _refuse_variants(transformer: Mapping[str, Any], where: str) -> None:
    """Refuse what no released checkpoint has and the networks would not compute."""
    rope = transformer.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else rope
    if kind != "default":
        raise CheckpointError(f"{where}: rope_scaling is of type {kind!r}; only 'default' is supported")
    if transformer.get("use_sliding_window"):
        raise CheckpointError(f"{where}: use_sliding_window is set; only full attention is supported")
    if transformer.get("attention_bias"):
        raise CheckpointError(f"{where}: attention_bias is set; only attention without biases is supported")
    if transformer.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"{where}: hidden_act is {transformer['hidden_act']!r}; only 'silu' is supported")


def _check(config: Qwen3TTSConfig) -> None:
    """Refuse what the networks could load but not run."""
    talker, decoder = config.talker, config.codec.decoder_config
    if config.kind == "base" and config.speaker_encoder.enc_dim != talker.hidden_size:
        raise CheckpointError(
            f"{CONFIG_FILE}: speaker_encoder_config.enc_dim is {config.speaker_encoder.enc_dim}, "
            f"but the talker's hidden_size is {talker.hidden_size}"
        )
    if config.kind == "base" and config.speaker_encoder.sample_rate != config.codec.input_sample_rate:
        raise CheckpointError(
            f"{CONFIG_FILE}: speaker_encoder_config.sample_rate is {config.speaker_encoder.sample_rate}, "
            f"but the codec's input_sample_rate is {config.codec.input_sample_rate}"
        )
    if config.kind == "custom_voice" and not config.speakers:
        raise CheckpointError(
            f"{CONFIG_FILE}: talker_config: spk_id is empty, but a CustomVoice checkpoint has speakers"
        )
    codec = {name: getattr(talker, name) for name in _CODEC_TOKENS}
    codec |= {f"spk_id of {name}": token for name, token in config.speakers.items()}
    codec |= {f"codec_language_id of {name}": token for name, token in talker.codec_language_id.items()}
    for name, token in codec.items():
        if not 0 <= token < talker.vocab_size:
            raise CheckpointError(f"{CONFIG_FILE}: talker_config: {name} must lie in 0..{talker.vocab_size - 1}")
    for name in _TEXT_TOKENS:
        token = getattr(config, name)
        if type(token) is not int or not 0 <= token < talker.text_vocab_size:
            raise CheckpointError(f"{CONFIG_FILE}: {name} must lie in 0..{talker.text_vocab_size - 1}")
    for name, dialect in config.dialects.items():
        if dialect not in talker.codec_language_id:
            raise CheckpointError(
                f"{CONFIG_FILE}: talker_config: codec_language_id lacks {dialect!r}, which {name} speaks"
            )
    groups = {
        "talker_config.num_code_groups": talker.num_code_groups,
        "code_predictor_config.num_code_groups": talker.code_predictor_config.num_code_groups,
        "encoder_valid_num_quantizers": config.codec.encoder_valid_num_quantizers,
        "decoder_config.num_quantizers": decoder.num_quantizers,
    }
    if len(set(groups.values())) != 1:
        raise CheckpointError(f"{CONFIG_FILE}: the numbers of codebooks disagree: {groups}")
    upsampling = math.prod((*decoder.upsample_rates, *decoder.upsampling_ratios))
    if upsampling != config.codec.decode_upsample_rate:
        raise CheckpointError(
            f"{CODEC_FOLDER}/{CONFIG_FILE}: the decoder upsamples by {upsampling}, "
            f"but decode_upsample_rate is {config.codec.decode_upsample_rate}"
        )
