"""Sizes of the flow and the vocoder, read from the shapes of their weights, and their constants. Needs no torch.

Source of the constants: the released model's configuration in the official repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voice_clone.checkpoint_folder import sizes_of
from voice_clone.errors import CheckpointError
from voice_clone.families.cosyvoice3.config import FLOW, HIFT, MEL_BANDS

LOOK_AHEAD = 3  # tokens that the flow's first layer sees ahead
STEPS = 10  # of Euler's method
GUIDANCE = 0.7  # of the flow: v = (1 + g) v(voice and tokens) - g v(nothing)
HEAD_DIM = 64
KERNEL = 31  # of the two convolutions before the transformer
GROUPS = 16  # of their channels
TIME_SIZE = 256  # numbers that encode a point of time
NOISE_FRAMES = 15000  # of the fixed noise that the flow begins with

RATES = (8, 5, 3)  # the vocoder's upsampling, stage by stage
KERNELS = (16, 11, 7)  # of its upsampling convolutions
BLOCK_KERNELS = (3, 7, 11)  # of the residual blocks of a stage
SOURCE_KERNELS = (7, 7, 11)  # of the residual block of a stage's source
DILATIONS = (1, 3, 5)
HARMONICS = 9  # the fundamental among them
FFT, HOP = 16, 4  # samples of the short-time Fourier transforms at the vocoder's ends
PRE_LOOK_AHEAD, F0_LOOK_AHEAD = 4, 3  # frames that its first convolution and its pitch network see ahead
SOURCE_NOISE = 60 * 24000  # samples of the fixed noise of its source


@dataclass(frozen=True)
class FlowConfig:
    """Sizes of the flow.

    Attributes:
        dim: of the transformer.
        layers: of the transformer.
        ffn: between the two matrices behind each attention.
        look_ahead_channels: between the two convolutions over the tokens.
    """

    dim: int
    layers: int
    ffn: int
    look_ahead_channels: int

    @property
    def heads(self) -> int:
        """Of an attention."""
        return self.dim // HEAD_DIM

    @property
    def frame_numbers(self) -> int:
        """Keys and values of a frame of mel: of each step, layer, with and without guidance."""
        return STEPS * self.layers * 2 * 2 * self.dim


@dataclass(frozen=True)
class VocoderConfig:
    """Sizes of the vocoder: channels behind its first convolution, and of its pitch network."""

    channels: int
    f0_channels: int


_ESTIMATOR, _CONV = "decoder.estimator", "parametrizations.weight.original1"
_FLOW_SIZES = {
    "dim": (f"{_ESTIMATOR}.input_embed.proj.weight", 2, 0),
    "width": (f"{_ESTIMATOR}.input_embed.proj.weight", 2, 1),
    "ffn": (f"{_ESTIMATOR}.transformer_blocks.0.ff.ff.0.0.weight", 2, 0),
    "look_ahead_channels": ("pre_lookahead_layer.conv1.weight", 3, 0),
}
_VOCODER_SIZES = {
    "channels": (f"conv_pre.{_CONV}", 3, 0),
    "f0_channels": (f"f0_predictor.condnet.0.{_CONV}", 3, 0),
}


def flow_config(shapes: Mapping[str, tuple[int, ...]]) -> FlowConfig:
    """The sizes of a flow with tensors of these shapes by official names.

    Raises:
        CheckpointError: a tensor that gives a size is missing or wrong.
    """
    found = sizes_of(shapes, FLOW, _FLOW_SIZES, {"layers": f"{_ESTIMATOR}.transformer_blocks"})
    dim, width = found["dim"], found.pop("width")
    if width != 4 * MEL_BANDS or dim % HEAD_DIM or dim % GROUPS:
        raise CheckpointError(f"{FLOW}: its first matrix is {dim} x {width}; expected a multiple of 64 x 320")
    return FlowConfig(**found)


def vocoder_config(shapes: Mapping[str, tuple[int, ...]]) -> VocoderConfig:
    """The sizes of a vocoder with tensors of these shapes by official names.

    Raises:
        CheckpointError: a tensor that gives a size is missing or wrong.
    """
    found = VocoderConfig(**sizes_of(shapes, HIFT, _VOCODER_SIZES, {}))
    if found.channels % 8:
        raise CheckpointError(f"{HIFT}: its first convolution has {found.channels} channels; expected a multiple of 8")
    return found


def primed_blocks(reference: int, block: int) -> int:
    """Of the blocks of `block` tokens those that depend on a reference of so many tokens alone."""
    return max(0, reference - LOOK_AHEAD) // block
