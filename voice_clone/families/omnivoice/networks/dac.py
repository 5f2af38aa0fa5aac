"""The codec's DAC (Kumar et al. 2023): a 24 kHz waveform to latents and back. Nothing in it is causal.

Names are those of transformers' `DacModel`. Two things are the HiggsAudio codec's: an odd rate's transposed convolution
has an output padding of one, and the waveform is not bounded.

Shapes: B signals, C channels, T frames.
"""

from __future__ import annotations

from torch import Tensor, nn

from voice_clone.families.omnivoice.codec_config import AcousticConfig
from voice_clone.layers.vocoder import Snake

DILATIONS = (1, 3, 9)


class ResidualUnit(nn.Module):
    """A dilated and a pointwise convolution, each after a Snake."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.snake1 = Snake(channels)
        self.conv1 = nn.Conv1d(channels, channels, 7, dilation=dilation, padding=3 * dilation)
        self.snake2 = Snake(channels)
        self.conv2 = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.conv2(self.snake2(self.conv1(self.snake1(x))))
        return x + hidden


class _Units(nn.Module):
    """Three residual units of growing dilation, under transformers' names."""

    def add_units(self, channels: int) -> None:
        for number, dilation in enumerate(DILATIONS, start=1):
            self.add_module(f"res_unit{number}", ResidualUnit(channels, dilation))

    def through_units(self, x: Tensor) -> Tensor:
        for number, _ in enumerate(DILATIONS, start=1):
            x = self.get_submodule(f"res_unit{number}")(x)
        return x


class EncoderBlock(_Units):
    """Residual units, then a convolution to twice the channels and an n-th of the rate."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        self.add_units(channels)
        self.snake1 = Snake(channels)
        self.conv1 = nn.Conv1d(channels, 2 * channels, 2 * rate, rate, padding=(rate + 1) // 2)

    def forward(self, x: Tensor) -> Tensor:
        halved: Tensor = self.conv1(self.snake1(self.through_units(x)))
        return halved


class DecoderBlock(_Units):
    """A transposed convolution to half the channels and n times the rate, then residual units."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        self.snake1 = Snake(channels)
        self.conv_t1 = nn.ConvTranspose1d(
            channels, channels // 2, 2 * rate, rate, padding=(rate + 1) // 2, output_padding=rate % 2
        )
        self.add_units(channels // 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.through_units(self.conv_t1(self.snake1(x)))


class AcousticEncoder(nn.Module):
    """Waveform [B, 1, samples] -> latents [B, hidden_size, T]."""

    def __init__(self, config: AcousticConfig) -> None:
        super().__init__()
        channels = config.encoder_hidden_size
        self.conv1 = nn.Conv1d(1, channels, 7, padding=3)
        blocks = []
        for rate in config.downsampling_ratios:
            blocks.append(EncoderBlock(channels, rate))
            channels *= 2
        self.block = nn.ModuleList(blocks)
        self.snake1 = Snake(channels)
        self.conv2 = nn.Conv1d(channels, config.hidden_size, 3, padding=1)

    def forward(self, waveform: Tensor) -> Tensor:
        x = self.conv1(waveform)
        for block in self.block:
            x = block(x)
        latents: Tensor = self.conv2(self.snake1(x))
        return latents


class AcousticDecoder(nn.Module):
    """Latents [B, hidden_size, T] -> waveform [B, 1, samples], unbounded."""

    def __init__(self, config: AcousticConfig) -> None:
        super().__init__()
        channels = config.decoder_hidden_size
        self.conv1 = nn.Conv1d(config.hidden_size, channels, 7, padding=3)
        blocks = []
        for rate in config.upsampling_ratios:
            blocks.append(DecoderBlock(channels, rate))
            channels //= 2
        self.block = nn.ModuleList(blocks)
        self.snake1 = Snake(channels)
        self.conv2 = nn.Conv1d(channels, 1, 7, padding=3)

    def forward(self, latents: Tensor) -> Tensor:
        x = self.conv1(latents)
        for block in self.block:
            x = block(x)
        waveform: Tensor = self.conv2(self.snake1(x))
        return waveform
