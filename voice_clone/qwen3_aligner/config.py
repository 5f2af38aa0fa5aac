"""The configuration of a checkpoint of Qwen3-ForcedAligner, read from its official `config.json`. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voice_clone.checkpoint_folder import check_fixed, check_folder, multiple_of, parse, read_json
from voice_clone.errors import CheckpointError

CONFIG_FILE, WEIGHTS = "config.json", "model"
TIMESTAMP, AUDIO_PAD, AUDIO_START, AUDIO_END = "<timestamp>", "<|audio_pad|>", "<|audio_start|>", "<|audio_end|>"
CHUNK = 100  # mel frames that the convolutions see together: 1 s

_THINKER = {"model_type": "qwen3_forced_aligner"}
_AUDIO = {"activation_function": "gelu", "scale_embedding": False, "num_mel_bins": 128, "n_window": CHUNK // 2}
_TEXT = {"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False}


@dataclass(frozen=True)
class AudioConfig:
    """`audio_config`: the encoder of the sound, which the official code calls a tower.

    Attributes:
        n_window_infer: mel frames whose rows see each other.
        downsample_hidden_size: channels of its convolutions.
        output_dim: numbers of a row, as many as the decoder's.
    """

    d_model: int = field(metadata=multiple_of("encoder_attention_heads"))
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    output_dim: int
    downsample_hidden_size: int = 480
    n_window_infer: int = 800


@dataclass(frozen=True)
class TextConfig:
    """`text_config`: Qwen3's decoder stack, and how many tokens its table has."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int = field(metadata=multiple_of("num_key_value_heads"))
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6


@dataclass(frozen=True)
class AlignerConfig:
    """Everything that is needed of `config.json`.

    Attributes:
        classify_num: classes, each a time.
        timestamp_segment_time: milliseconds from one time to the next.
        tokens: ids of the tokens that are no text, by their names.
    """

    audio: AudioConfig
    text: TextConfig
    classify_num: int
    timestamp_segment_time: float
    tokens: dict[str, int]


@dataclass(frozen=True)
class _Top:
    timestamp_token_id: int
    timestamp_segment_time: float


@dataclass(frozen=True)
class _Thinker:
    audio_config: AudioConfig
    text_config: TextConfig
    classify_num: int
    audio_token_id: int
    audio_start_token_id: int
    audio_end_token_id: int


def load_config(folder: Path) -> AlignerConfig:
    """Read and check the configuration of the checkpoint in `folder`.

    Raises:
        CheckpointError: the file is missing or malformed, or this is no checkpoint of the aligner.
    """
    check_folder(folder)
    values = read_json(folder, CONFIG_FILE)
    where = f"{CONFIG_FILE}: thinker_config"
    thinker = _recognised(values)
    for name, fixed in (("audio_config", _AUDIO), ("text_config", _TEXT)):
        part = thinker.get(name)
        check_fixed(part if isinstance(part, dict) else {}, fixed, f"{where}.{name}.")
    top = parse(_Top, values, CONFIG_FILE, positive=True)
    found = parse(_Thinker, thinker, where, positive=True)
    audio, text = found.audio_config, found.text_config
    _check_positions(thinker["text_config"].get("rope_scaling"), text, f"{where}.text_config.rope_scaling")
    if audio.output_dim != text.hidden_size:
        raise CheckpointError(
            f"{where}: audio_config.output_dim is {audio.output_dim}, but hidden_size of text_config {text.hidden_size}"
        )
    if audio.n_window_infer % CHUNK:
        raise CheckpointError(
            f"{where}: audio_config.n_window_infer is {audio.n_window_infer}; it must be a multiple of {CHUNK}"
        )
    tokens = {
        TIMESTAMP: top.timestamp_token_id,
        AUDIO_PAD: found.audio_token_id,
        AUDIO_START: found.audio_start_token_id,
        AUDIO_END: found.audio_end_token_id,
    }
    for name, token in tokens.items():
        if token >= text.vocab_size:
            raise CheckpointError(f"{CONFIG_FILE}: the id of {name} is {token}, but vocab_size is {text.vocab_size}")
    return AlignerConfig(audio, text, found.classify_num, top.timestamp_segment_time, tokens)


def _recognised(values: dict[str, Any]) -> dict[str, Any]:
    """`thinker_config` of the aligner, which no other checkpoint has.

    Raises:
        CheckpointError: this is another checkpoint. The message says which, where it is known.
    """
    if values.get("model_type") != "qwen3_asr":
        raise CheckpointError(f"{CONFIG_FILE}: model_type is {values.get('model_type')!r}, not 'qwen3_asr'")
    thinker = values.get("thinker_config")
    if not isinstance(thinker, dict) and "audio_config" in values:
        raise CheckpointError(
            f"{CONFIG_FILE}: thinker_config is missing: this is the form of transformers 5, whose name ends in -hf; "
            "take Qwen3-ForcedAligner-0.6B itself"
        )
    if not isinstance(thinker, dict):
        raise CheckpointError(f"{CONFIG_FILE}: the key 'thinker_config' is missing")
    if "model_type" not in thinker or thinker["model_type"] == "qwen3_asr_thinker":
        raise CheckpointError(
            f"{CONFIG_FILE}: thinker_config.model_type is not 'qwen3_forced_aligner': this is Qwen3-ASR, which "
            "recognises speech; take Qwen3-ForcedAligner-0.6B"
        )
    check_fixed(thinker, _THINKER, f"{CONFIG_FILE}: thinker_config.")
    return thinker


def _check_positions(scaling: Any, text: TextConfig, where: str) -> None:
    """Check that rows of one time have plain RoPE: then the three parts of a position are equal, in whatever order."""
    given = scaling or {}
    kind = given.get("rope_type", given.get("type", "default")) if isinstance(given, dict) else given
    if kind != "default":
        raise CheckpointError(f"{where} is of type {kind!r}; only 'default' is supported")
    section = given.get("mrope_section")
    if section is not None and (not isinstance(section, list) or sum(section) != text.head_dim // 2):
        raise CheckpointError(f"{where}.mrope_section is {section!r}; its sum must be {text.head_dim // 2}")
