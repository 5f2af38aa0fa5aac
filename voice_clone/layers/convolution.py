"""Causal convolutions with an explicit streaming state, and ConvNeXt blocks of them.

Output t depends only on the inputs up to t, so a signal can be processed in chunks. `stream(x, state)` returns the
outputs of a chunk and the next state; the outputs of all chunks, joined, are those of the whole signal. A state is one
tensor whose first dimension is the batch; `new_state` returns the state before a signal's first chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.layers.streaming import ChunkPass, Lengths, StreamingModule

# Up to so many rows a convolution is computed as a matrix product. With few rows its time is that of reading the
# weight, which torch's convolutions on a CPU read in another order than it has in memory. On one core, a transposed
# convolution of 1536 x 768 x 16 takes 88 ms for 4 frames, and the matrix product 7 ms. A plain one of 1024 x 1536 x 7
# takes 41 ms for 16 frames, and the matrix product 7 ms.
MATMUL_ROWS = 64


class CausalConv1d(StreamingModule):
    """Conv1d padded on the left by (kernel_size - 1) * dilation + 1 - stride.

    The streaming state [B, C, padding] is the inputs on which later outputs depend.

    Args:
        pad_mode: what stands before a signal: zeros (`constant`), its first sample (`replicate`), or the samples behind
            the first one in reverse (`reflect`). A stream of the last two needs as context which signals begin, bool
            [B]; with `reflect` the first chunk of a signal has more samples than the padding.
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
        """A whole signal [B, C, T] -> [B, C', ceil(T / stride)]; the right is padded to a multiple of the stride.

        With `reflect` a signal that is not longer than the padding is continued with zeros before it is reflected.
        """
        padding = self.padding, -x.shape[-1] % self.stride
        if self.pad_mode == "reflect" and x.shape[-1] <= self.padding:
            more = self.padding + 1 - x.shape[-1]
            padded = F.pad(F.pad(x, (0, more)), padding, mode=self.pad_mode)[..., :-more]
        else:
            padded = F.pad(x, padding, mode=self.pad_mode)
        out: Tensor = self.conv(padded)
        return out

    def new_state(self, batch: int) -> Tensor:
        """[B, C, padding] zeros, on the weights' device and in their dtype."""
        return self.conv.weight.new_zeros(batch, self.in_channels, self.padding)

    def stream(self, x: Tensor, state: Tensor, *context: Any, valid: Lengths | None = None) -> tuple[Tensor, Tensor]:
        """A chunk [B, C, T], T a multiple of the stride -> ([B, C', T / stride], the next state).

        `context`: which signals begin with this chunk, bool [B], unless zeros stand before them.
        """
        if self.padding == 0:
            return self.conv(x), state
        if self.pad_mode != "constant":
            state = torch.where(context[0][:, None, None], self._before(x), state)
        x = torch.cat((state, x), dim=-1)
        if valid is not None:
            return self._convolve(x), valid.following(x, self.padding, 2)
        return self._convolve(x), x[..., x.shape[-1] - self.padding :].clone()

    def _before(self, x: Tensor) -> Tensor:
        """What stands before signals that begin with x: [B, C, padding]."""
        if self.pad_mode == "replicate":
            return x[..., :1].expand(-1, -1, self.padding)
        missing = max(0, self.padding + 1 - x.shape[-1])  # then none of the signals begins
        return F.pad(x, (0, missing))[..., 1 : self.padding + 1].flip(-1)

    def _convolve(self, x: Tensor) -> Tensor:
        """The convolution of a padded chunk: [B, C, padding + T] -> [B, C', T / stride]."""
        (kernel_size,), (dilation,) = self.conv.kernel_size, self.conv.dilation
        span = (kernel_size - 1) * dilation + 1
        batch, channels, length = x.shape
        steps = (length - span) // self.stride + 1
        if self.conv.groups > 1 or batch * steps > MATMUL_ROWS:
            out: Tensor = self.conv(x)
            return out
        seen = x.unfold(-1, span, self.stride)[..., ::dilation]  # [B, C, steps, kernel_size]
        rows = seen.transpose(1, 2).reshape(batch * steps, channels * kernel_size)
        return F.linear(rows, self.conv.weight.flatten(1), self.conv.bias).view(batch, steps, -1).transpose(1, 2)


class CausalConvTranspose1d(StreamingModule):
    """ConvTranspose1d without its last kernel_size - stride outputs: T inputs make T * stride outputs.

    The streaming state [B, C', kernel_size - stride] is what past inputs add to the next outputs.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int, bias: bool = True) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(in_channels, out_channels, kernel_size, stride, bias=bias)
        self.out_channels = out_channels
        self.overlap = kernel_size - stride

    def new_state(self, batch: int) -> Tensor:
        """[B, C', kernel_size - stride] zeros, on the weights' device and in their dtype."""
        return self.conv.weight.new_zeros(batch, self.out_channels, self.overlap)

    def stream(self, x: Tensor, state: Tensor, *context: Any, valid: Lengths | None = None) -> tuple[Tensor, Tensor]:
        """A chunk [B, C, T] -> ([B, C', T * stride], the next state)."""
        if self.overlap == 0:
            valid = None  # no output depends on an earlier input
        if valid is not None:  # padding must not reach the next outputs
            x = valid.zero_padding(x)
        out = self._overlapping(x)
        out[..., : self.overlap] += state
        done = out.shape[-1] - self.overlap
        after = out[..., done:].clone() if valid is None else valid.following(out, self.overlap, 2)
        # The bias is added once to each output, not to each of its overlapping parts.
        return out[..., :done] if self.conv.bias is None else out[..., :done] + self.conv.bias[:, None], after

    def _overlapping(self, x: Tensor) -> Tensor:
        """The transposed convolution without bias: [B, C, T] -> [B, C', T * stride + kernel_size - stride]."""
        weight, (kernel_size,), (stride,) = self.conv.weight, self.conv.kernel_size, self.conv.stride
        batch, channels, length = x.shape
        if batch * length > MATMUL_ROWS:
            return F.conv_transpose1d(x, weight, None, stride)
        rows = x.transpose(1, 2).reshape(-1, channels) @ weight.flatten(1)  # [B * T, C' * kernel_size]
        frames = rows.view(batch, length, -1).transpose(1, 2)
        size = (1, (length - 1) * stride + kernel_size)
        return F.fold(frames, size, (1, kernel_size), stride=(1, stride)).squeeze(2)


class ConvNeXtBlock(nn.Module):
    """ConvNeXt in one dimension (Liu et al. 2022): depthwise convolution, norm, pointwise MLP. x: [B, C, T]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = CausalConv1d(dim, dim, 7, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, 4 * dim)
        self.pwconv2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor, stream: ChunkPass) -> Tensor:
        hidden: Tensor = self.norm(stream(self.dwconv, x).transpose(1, 2))  # [B, T, C]
        hidden = self.pwconv2(F.gelu(self.pwconv1(hidden)))
        return torch.addcmul(x, hidden.transpose(1, 2), self.gamma[:, None])


class Upsample(nn.ModuleList):
    """Upsampling by `factor` without overlap, then a ConvNeXt block. x: [B, C, T]."""

    def __init__(self, dim: int, factor: int) -> None:
        super().__init__([CausalConvTranspose1d(dim, dim, factor, factor), ConvNeXtBlock(dim)])

    def forward(self, x: Tensor, stream: ChunkPass) -> Tensor:
        upsample, block = self
        out: Tensor = block(stream(upsample, x), stream)
        return out
