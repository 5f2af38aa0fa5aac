"""Pocket TTS's configuration: `pocket_tts.json` of a checkpoint folder. Needs no torch.

It has the keys of the official YAML files (pocket-tts 4.0.1, `utils/config.py`), of which the converter in
tools/families/pocket_tts makes it. A number that may be left out is 0 here where it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voice_clone.checkpoint_folder import check_fixed, multiple_of, parse, read_recognised, tensor_bytes
from voice_clone.errors import CheckpointError
from voice_clone.families.pocket_tts.family import CARD
from voice_clone.layers.seanet_config import SEANetConfig

CONFIG_FILE = CARD.recognised_by.partition(":")[0]
MODEL = CARD.weights[0].name
HEADS = ("lsd", "drifting", "pointwise")
PIECE_FRAMES = 25  # of a clip, encoded at once: memory does not grow with it
LONGEST_CLIP = 30.0  # seconds, without the pause behind them
NO_ENCODER = (
    "this checkpoint's voice encoder is empty: it is the file without voice cloning; use the one with it, of "
    "kyutai/pocket-tts, whose terms must be accepted there"
)

FIRST_CONVOLUTION = "mimi.encoder.model.0.conv.weight"


@dataclass(frozen=True)
class HeadConfig:
    """`flow_lm.flow`: the head that makes a frame of noise.

    Attributes:
        type: one of `HEADS`.
    """

    dim: int
    depth: int
    type: str = "lsd"


@dataclass(frozen=True)
class BackboneConfig:
    """`flow_lm.transformer`."""

    d_model: int
    hidden_scale: int
    max_period: float
    num_heads: int
    num_layers: int
    attn_dim: int = 0
    num_kv_heads: int = 0
    dim_feedforward: int = 0

    @property
    def inner(self) -> int:
        return self.dim_feedforward or self.d_model * self.hidden_scale

    @property
    def queries(self) -> int:
        return self.attn_dim or self.d_model

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads


@dataclass(frozen=True)
class TableConfig:
    """`flow_lm.lookup_table`: the embeddings of text; with a rank it is a product of two tables."""

    dim: int
    n_bins: int
    rank: int = 0


@dataclass(frozen=True)
class TalkerConfig:
    """`flow_lm`."""

    flow: HeadConfig
    transformer: BackboneConfig
    lookup_table: TableConfig
    z_dim: int = 0
    insert_bos_before_voice: bool = False


@dataclass(frozen=True)
class WindowConfig:
    """`mimi.transformer` and `mimi.decoder_transformer`; `context`: positions that one sees, itself among them."""

    d_model: int = field(metadata=multiple_of("num_heads"))
    num_heads: int
    num_layers: int
    context: int
    dim_feedforward: int
    max_period: float = 10000.0


@dataclass(frozen=True)
class QuantizerConfig:
    """`mimi.quantizer`: numbers of a frame, and of what the decoder reads."""

    dimension: int
    output_dimension: int


@dataclass(frozen=True)
class CodecConfig:
    """`mimi`. What the file leaves out of the decoder's sizes is as the encoder's."""

    sample_rate: int
    frame_rate: float
    seanet: SEANetConfig
    transformer: WindowConfig
    quantizer: QuantizerConfig
    decoder_seanet: SEANetConfig
    decoder_transformer: WindowConfig
    inner_dim: int = 0
    outer_dim: int = 0

    @property
    def voice_width(self) -> int:
        """Numbers of a frame of a clip."""
        return self.inner_dim or self.seanet.dimension

    @property
    def frame_samples(self) -> int:
        return round(self.sample_rate / self.frame_rate)

    @property
    def stride(self) -> int:
        """Positions of the transformers in a frame."""
        return self.frame_samples // math.prod(self.seanet.ratios)


@dataclass(frozen=True)
class PocketConfig:
    """Everything the stages need to know of a checkpoint.

    Attributes:
        replace_characters: what stands for some characters of a text.
    """

    flow_lm: TalkerConfig
    mimi: CodecConfig
    pad_with_spaces_for_short_inputs: bool = False
    remove_semicolons: bool = False
    append_terminal_punctuation: bool = True
    capitalize_first_letter: bool = True
    model_recommended_frames_after_eos: int = -1  # none
    default_temperature: float = 0.3
    default_eos_threshold: float = -4.0
    replace_characters: Mapping[str, str] = field(default_factory=dict)


def load_config(folder: Path) -> PocketConfig:
    """Read and check the configuration of the checkpoint in `folder`.

    Raises:
        CheckpointError: a file is missing or malformed, or its networks are of a kind that is not computed here.
    """
    return config_of(read_recognised(folder, CARD.recognised_by))


def config_of(values: Mapping[str, Any]) -> PocketConfig:
    """The configuration in a JSON object, checked; errors as of `load_config`."""
    codec = {key: value for key, value in dict(values.get("mimi") or {}).items() if value is not None}
    for name in ("seanet", "transformer"):
        codec.setdefault(f"decoder_{name}", codec.get(name))
    config = parse(PocketConfig, {**values, "mimi": codec}, CONFIG_FILE)
    for cls, name, part in ((TalkerConfig, "flow_lm", values["flow_lm"]), (CodecConfig, "mimi", codec)):
        parse(cls, part, f"{CONFIG_FILE}: {name}", positive=True)
    for name in ("seanet", "decoder_seanet"):
        fixed = {"channels": 1, "pad_mode": "constant", "n_residual_layers": 1}
        check_fixed(codec[name], fixed, f"{CONFIG_FILE}: mimi.{name}.")
    _check(config)
    return config


def _check(config: PocketConfig) -> None:
    talker, codec, backbone = config.flow_lm, config.mimi, config.flow_lm.transformer
    hop, size = math.prod(codec.seanet.ratios), codec.decoder_seanet.dimension
    for right, wrong in (
        (talker.flow.type in HEADS, f"flow_lm.flow.type must be one of {', '.join(HEADS)}"),
        (talker.lookup_table.dim == backbone.d_model, "flow_lm.lookup_table.dim must be d_model"),
        (backbone.queries % (2 * backbone.num_heads) == 0, "flow_lm.transformer: heads must have an even size"),
        (backbone.num_heads % backbone.kv_heads == 0, "flow_lm.transformer: num_kv_heads must divide num_heads"),
        (codec.frame_samples % hop == 0, "mimi.seanet.ratios: their product must divide the samples of a frame"),
        (math.prod(codec.decoder_seanet.ratios) == hop, "mimi.decoder_seanet.ratios must change the rate alike"),
        (codec.seanet.dimension == codec.transformer.d_model, "mimi.transformer.d_model must be seanet.dimension"),
        (size == codec.decoder_transformer.d_model, "mimi: the decoder's d_model must be its dimension"),
        (size == codec.quantizer.output_dimension, "mimi.quantizer.output_dimension must be the decoder's dimension"),
        (codec.outer_dim in (0, size), "mimi.outer_dim must be the decoder's dimension"),
    ):
        if not right:
            raise CheckpointError(f"{CONFIG_FILE}: {wrong}")


def shortcoming(folder: Path) -> str:
    """What a checkpoint that can be served cannot do, in a sentence; empty: nothing.

    The open file has a voice encoder whose numbers are all zero.

    Raises:
        CheckpointError: the weight file is missing or cut short, or lacks the encoder's first tensor.
    """
    return "" if any(tensor_bytes(folder, MODEL, FIRST_CONVOLUTION)) else NO_ENCODER
