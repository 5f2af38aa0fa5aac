"""SEANet (Tagliasacchi et al. 2020) in the causal form of Mimi (Defossez et al. 2024): from a waveform to a latent, and
back.

Names are those of Mimi's code, with `layers` for its `model`.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d
from voice_clone.layers.seanet_config import SEANetConfig
from voice_clone.layers.streaming import Run, StreamingModule, whole


class ResidualBlock(nn.Module):
    """A residual unit: a dilated convolution to fewer channels and a pointwise one back."""

    def __init__(self, config: SEANetConfig, dim: int, dilation: int) -> None:
        super().__init__()
        hidden = dim // config.compress
        self.block = nn.Sequential(
            nn.ELU(),
            CausalConv1d(dim, hidden, config.residual_kernel_size, dilation=dilation),
            nn.ELU(),
            CausalConv1d(hidden, dim, 1),
        )

    def forward(self, x: Tensor, stream: Run = whole) -> Tensor:
        return x + _through(self.block, x, stream)


class SEANetEncoder(nn.Module):
    """waveform [B, 1, T] -> [B, hidden, ceil(T / product of the ratios)]."""

    def __init__(self, config: SEANetConfig) -> None:
        super().__init__()
        dim = config.n_filters
        layers: list[nn.Module] = [CausalConv1d(config.channels, dim, config.kernel_size)]
        for ratio in reversed(config.ratios):
            layers += [*_residuals(config, dim), nn.ELU(), CausalConv1d(dim, 2 * dim, 2 * ratio, stride=ratio)]
            dim *= 2
        layers += [nn.ELU(), CausalConv1d(dim, config.dimension, config.last_kernel_size)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor, stream: Run = whole) -> Tensor:
        return _through(self.layers, x, stream)


class SEANetDecoder(nn.Module):
    """Latent [B, hidden, T] -> waveform [B, 1, T * product of the ratios]."""

    def __init__(self, config: SEANetConfig) -> None:
        super().__init__()
        dim = config.n_filters << len(config.ratios)
        layers: list[nn.Module] = [CausalConv1d(config.dimension, dim, config.kernel_size)]
        for ratio in config.ratios:
            layers += [nn.ELU(), CausalConvTranspose1d(dim, dim // 2, 2 * ratio, ratio), *_residuals(config, dim // 2)]
            dim //= 2
        layers += [nn.ELU(), CausalConv1d(dim, config.channels, config.last_kernel_size)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor, stream: Run) -> Tensor:
        return _through(self.layers, x, stream)


def _residuals(config: SEANetConfig, dim: int) -> list[nn.Module]:
    return [ResidualBlock(config, dim, config.dilation_base**level) for level in range(config.n_residual_layers)]


def _through(layers: Iterable[nn.Module], x: Tensor, stream: Run) -> Tensor:
    for layer in layers:
        if isinstance(layer, ResidualBlock):
            x = layer(x, stream)
        else:
            x = stream(layer, x) if isinstance(layer, StreamingModule) else layer(x)
    return x
