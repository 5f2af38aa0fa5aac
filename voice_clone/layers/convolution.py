"""Causal convolutions with an explicit streaming state.

Output t depends on inputs up to t alone, so a signal may be processed in chunks: `stream(x, state)` returns the
next outputs and the next state, and the chunks' outputs joined are the outputs of the whole signal. A state is one
tensor with the streams of a batch in its first dimension; `new_state` gives that of a signal's start.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class CausalConv1d(nn.Module):
    """Conv1d padded on the left by (kernel_size - 1) * dilation + 1 - stride.

    `pad_mode` is "constant" (zeros) or "replicate" (the first sample; the last one on the right); only the former
    can stream. The streaming state [B, C, padding] is the inputs that coming outputs still see.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
        pad_mode: str = "constant",
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size, stride, 0, dilation, groups, bias)
        self.in_channels = in_channels
        self.stride = stride
        self.padding = (kernel_size - 1) * dilation + 1 - stride
        self.pad_mode = pad_mode

    def forward(self, x: Tensor) -> Tensor:
        """A whole signal [B, C, T] -> [B, C', ceil(T / stride)]; the right is padded to a multiple of the stride."""
        out: Tensor = self.conv(F.pad(x, (self.padding, -x.shape[-1] % self.stride), mode=self.pad_mode))
        return out

    def new_state(self, batch: int) -> Tensor:
        """[B, C, padding] zeros, on the weights' device and in their dtype."""
        return self.conv.weight.new_zeros(batch, self.in_channels, self.padding)

    def stream(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """A chunk [B, C, T], T a multiple of the stride -> ([B, C', T / stride], the next state)."""
        x = torch.cat((state, x), dim=-1)
        return self.conv(x), x[..., x.shape[-1] - self.padding :].clone()


class CausalConvTranspose1d(nn.Module):
    """ConvTranspose1d cut on the right by kernel_size - stride: T inputs make T * stride outputs.

    The streaming state [B, C', kernel_size - stride] is what past inputs add to the coming outputs.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(in_channels, out_channels, kernel_size, stride)
        self.out_channels = out_channels
        self.overlap = kernel_size - stride

    def forward(self, x: Tensor) -> Tensor:
        """A whole signal [B, C, T] -> [B, C', T * stride]."""
        out: Tensor = self.conv(x)
        return out[..., : out.shape[-1] - self.overlap]

    def new_state(self, batch: int) -> Tensor:
        """[B, C', kernel_size - stride] zeros, on the weights' device and in their dtype."""
        return self.conv.weight.new_zeros(batch, self.out_channels, self.overlap)

    def stream(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """A chunk [B, C, T] -> ([B, C', T * stride], the next state)."""
        # The bias must be added once to every output, so it stays out of the overlapping sums.
        out = F.conv_transpose1d(x, self.conv.weight, None, self.conv.stride)
        out[..., : self.overlap] += state
        done = out.shape[-1] - self.overlap
        assert self.conv.bias is not None
        return out[..., :done] + self.conv.bias[:, None], out[..., done:].clone()
