"""ConvNeXt blocks over time, and upsampling that ends in one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d
from voice_clone.layers.streaming import ChunkPass


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
