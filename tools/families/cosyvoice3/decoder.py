"""Random weights of the flow and the vocoder in the official format: flow.pt and hift.pt."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from tools.families.weight_files import Shapes, noise_of
from voice_clone.families.cosyvoice3.config import CODES, MEL_BANDS, SPEAKER_SIZE
from voice_clone.families.cosyvoice3.decoder_config import (
    BLOCK_KERNELS,
    DILATIONS,
    F0_LOOK_AHEAD,
    FFT,
    GROUPS,
    HARMONICS,
    HEAD_DIM,
    KERNEL,
    KERNELS,
    LOOK_AHEAD,
    PRE_LOOK_AHEAD,
    RATES,
    SOURCE_KERNELS,
    TIME_SIZE,
    FlowConfig,
    VocoderConfig,
)

FLOWS = {
    "tiny": FlowConfig(dim=128, layers=2, ffn=256, look_ahead_channels=32),
    "0.5b-2": FlowConfig(dim=1024, layers=2, ffn=2048, look_ahead_channels=1024),
    "0.5b": FlowConfig(dim=1024, layers=22, ffn=2048, look_ahead_channels=1024),
}
VOCODERS = {
    "tiny": VocoderConfig(channels=32, f0_channels=16),
    "0.5b-2": VocoderConfig(channels=512, f0_channels=512),
    "0.5b": VocoderConfig(channels=512, f0_channels=512),
}
PITCH = 300.0  # by which the pitch network's last layer is scaled: else all is unvoiced
GENERATOR = "generator."  # before the names of the released vocoder


def make_decoder(shape: str, seed: int, folder: Path) -> None:
    """Write flow.pt and hift.pt. Same arguments, same tensors.

    Args:
        shape: a key of `FLOWS`.
        seed: of all weights.
        folder: that is there.
    """
    flow = {name: _flow_tensor(name, size, seed) for name, size in flow_shapes(FLOWS[shape]).items()}
    flow["decoder.estimator.rotary_embed.inv_freq"] = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    torch.save(flow, folder / "flow.pt")
    shapes = vocoder_shapes(VOCODERS[shape])
    vocoder = {name: _vocoder_tensor(name, size, seed) for name, size in shapes.items() if not _is_length(name)}
    for name in filter(_is_length, shapes):
        direction = vocoder[name.removesuffix("0") + "1"]
        vocoder[name] = torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
    torch.save({GENERATOR + name: vocoder[name] for name in shapes}, folder / "hift.pt")


def flow_shapes(config: FlowConfig) -> Shapes:
    """Names and shapes of the tensors in flow.pt, but for the rotary table."""
    dim, channels, estimator = config.dim, config.look_ahead_channels, "decoder.estimator"
    shapes: Shapes = {"input_embedding.weight": (CODES, MEL_BANDS)}

    def linear(name: str, *size: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = size, size[:1]

    linear("spk_embed_affine_layer", MEL_BANDS, SPEAKER_SIZE)
    linear("pre_lookahead_layer.conv1", channels, MEL_BANDS, LOOK_AHEAD + 1)
    linear("pre_lookahead_layer.conv2", MEL_BANDS, channels, 3)
    linear(f"{estimator}.time_embed.time_mlp.0", dim, TIME_SIZE)
    linear(f"{estimator}.time_embed.time_mlp.2", dim, dim)
    linear(f"{estimator}.input_embed.proj", dim, 4 * MEL_BANDS)
    linear(f"{estimator}.input_embed.conv_pos_embed.conv1.0", dim, dim // GROUPS, KERNEL)
    linear(f"{estimator}.input_embed.conv_pos_embed.conv2.0", dim, dim // GROUPS, KERNEL)
    for number in range(config.layers):
        layer = f"{estimator}.transformer_blocks.{number}"
        linear(f"{layer}.attn_norm.linear", 6 * dim, dim)
        for part in ("to_q", "to_k", "to_v", "to_out.0"):
            linear(f"{layer}.attn.{part}", dim, dim)
        linear(f"{layer}.ff.ff.0.0", config.ffn, dim)
        linear(f"{layer}.ff.ff.2", dim, config.ffn)
    linear(f"{estimator}.norm_out.linear", 2 * dim, dim)
    linear(f"{estimator}.proj_out", MEL_BANDS, dim)
    return shapes


def vocoder_shapes(config: VocoderConfig) -> Shapes:
    """Names and shapes of the tensors in hift.pt without `GENERATOR`."""
    shapes: Shapes = {"m_source.l_linear.weight": (1, HARMONICS), "m_source.l_linear.bias": (1,)}

    def normed(name: str, *size: int) -> None:
        shapes[f"{name}.bias"] = size[:1]
        shapes[f"{name}.parametrizations.weight.original0"] = (size[0], 1, 1)
        shapes[f"{name}.parametrizations.weight.original1"] = size

    def block(name: str, channels: int, kernel: int) -> None:
        for number, _ in enumerate(DILATIONS):
            for part in ("1", "2"):
                normed(f"{name}.convs{part}.{number}", channels, channels, kernel)
                shapes[f"{name}.activations{part}.{number}.alpha"] = (channels,)

    bins = FFT + 2
    normed("conv_pre", config.channels, MEL_BANDS, PRE_LOOK_AHEAD + 1)
    for stage, kernel in enumerate(KERNELS):
        channels = config.channels >> (stage + 1)
        normed(f"ups.{stage}", channels, 2 * channels, kernel)
        rate = math.prod(RATES[stage + 1 :])
        shapes[f"source_downs.{stage}.weight"] = (channels, bins, 1 if rate == 1 else 2 * rate)
        shapes[f"source_downs.{stage}.bias"] = (channels,)
        block(f"source_resblocks.{stage}", channels, SOURCE_KERNELS[stage])
        for number, size in enumerate(BLOCK_KERNELS):
            block(f"resblocks.{stage * len(BLOCK_KERNELS) + number}", channels, size)
    normed("conv_post", bins, config.channels >> len(KERNELS), 7)
    inner = config.f0_channels
    normed("f0_predictor.condnet.0", inner, MEL_BANDS, F0_LOOK_AHEAD + 1)
    for number in (2, 4, 6, 8):
        normed(f"f0_predictor.condnet.{number}", inner, inner, 3)
    shapes["f0_predictor.classifier.weight"], shapes["f0_predictor.classifier.bias"] = (1, inner), (1,)
    return shapes


def _is_length(name: str) -> bool:
    return name.endswith(".original0")


def _fan_in(size: tuple[int, ...]) -> int:
    return math.prod(size[1:])


def _flow_tensor(name: str, size: tuple[int, ...], seed: int) -> Tensor:
    noise = noise_of(f"flow {name}", size, seed)
    if name == "input_embedding.weight":
        return noise
    if len(size) == 1:
        return 0.1 * noise
    return noise / math.sqrt(_fan_in(size))


def _vocoder_tensor(name: str, size: tuple[int, ...], seed: int) -> Tensor:
    noise = noise_of(f"hift {name}", size, seed)
    if name.endswith(".alpha"):
        return 1 + 0.2 * noise.abs()
    if name == "f0_predictor.classifier.weight":
        return PITCH * noise / math.sqrt(_fan_in(size))
    if len(size) == 1:
        return 0.1 * noise
    small = 0.5 if ".convs" in name else 1.0  # residual blocks in a row would make it louder and louder
    return small * noise / math.sqrt(_fan_in(size))
