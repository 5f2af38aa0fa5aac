"""Random weights of the flow and the vocoder in the official format: flow.pt and hift.pt."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from tools.families.gains import VECTOR, Fill, Gains, spread
from voice_clone.families.cosyvoice3.decoder_config import HEAD_DIM, FlowConfig, VocoderConfig
from voice_clone_server.families.cosyvoice3.released_shapes import GENERATOR, flow_shapes, vocoder_shapes

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
PITCH = 300.0  # the scale of the pitch network's last layer; without it, all frames are unvoiced


def make_decoder(shape: str, seed: int, folder: Path) -> None:
    """Write flow.pt and hift.pt. The same arguments give the same tensors.

    Args:
        shape: a key of `FLOWS`.
        seed: of all weights.
        folder: one that exists.
    """
    flow = {name: _FLOW(name, size, seed) for name, size in flow_shapes(FLOWS[shape]).items()}
    flow["decoder.estimator.rotary_embed.inv_freq"] = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    torch.save(flow, folder / "flow.pt")
    shapes = vocoder_shapes(VOCODERS[shape])
    vocoder = {name: _VOCODER(name, size, seed) for name, size in shapes.items() if not _is_length(name)}
    for name in filter(_is_length, shapes):
        direction = vocoder[name.removesuffix("0") + "1"]
        vocoder[name] = torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
    torch.save({GENERATOR + name: vocoder[name] for name in shapes}, folder / "hift.pt")


def _is_length(name: str) -> bool:
    return name.endswith(".original0")


def _layer(gain: float) -> Fill:
    return lambda noise, _: gain * noise / math.sqrt(math.prod(noise.shape[1:]))


_FLOW = Gains(
    kinds=((r"^input_embedding\.weight$", spread()), (VECTOR, spread(0.1)), (r".", _layer(1.0))), prefix="flow "
)
_VOCODER = Gains(
    kinds=(
        (r"\.alpha$", lambda noise, _: 1 + 0.2 * noise.abs()),
        (r"^f0_predictor\.classifier\.weight$", _layer(PITCH)),
        (VECTOR, spread(0.1)),
        (r"\.convs", _layer(0.5)),  # with more, residual blocks in a row make the signal louder and louder
        (r".", _layer(1.0)),
    ),
    prefix="hift ",
)
