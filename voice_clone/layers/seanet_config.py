"""Sizes of layers/seanet.py. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SEANetConfig:
    """Sizes of an encoder, or of a decoder, by the names of Mimi's code.

    Attributes:
        dimension: channels of the latent.
        n_filters: channels at the rate of the waveform.
        ratios: of the decoder's rates; the encoder has them in reverse.
        n_residual_layers: residual units of a rate.
        dilation_base: dilation of a residual unit, by that of the one before it.
        compress: channels of a residual unit, by those within it.
    """

    dimension: int
    n_filters: int
    ratios: tuple[int, ...]
    kernel_size: int
    residual_kernel_size: int
    last_kernel_size: int
    n_residual_layers: int = 1
    dilation_base: int = 2
    compress: int = 2
    channels: int = 1
