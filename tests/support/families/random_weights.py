"""Random weights under which signals neither vanish nor explode.

Default initialisation gives near silence in this codec (layer scales of 0.01, ConvNeXt gammas of 1e-6, codebooks of
zeros): any comparison would pass on it. The recipe: a layer's output has about its input's power, residual branches
add a third, codebooks are of unit size and shrink along a residual quantiser.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor, nn

from voice_clone.mapped_weights import Read

CODEBOOK_SHRINKAGE = 0.8  # from one codebook of a residual quantiser to the next


def fill_random(module: nn.Module, seed: int) -> None:
    """Overwrite every tensor of a codec network's state; the values depend on the seed and the names alone."""
    generator = torch.Generator().manual_seed(seed)
    state = module.state_dict()
    for name in sorted(state):
        if name.endswith("initialized"):
            continue
        noise = torch.randn(state[name].shape, generator=generator)
        state[name].copy_(_scaled(name, noise, module))
    for name, tensor in state.items():
        if name.endswith(("embed_sum", "embedding_sum")):  # a codebook stores sums: vectors times their usage
            tensor.mul_(state[re.sub(r"embed(ding)?_sum$", "cluster_usage", name)][:, None])


def reader(module: nn.Module) -> Read:
    """Reads the tensors of a module, as one of a checkpoint's file does it."""
    state = module.state_dict()

    def read(name: str, shape: tuple[int, ...]) -> Tensor:
        tensor: Tensor = state[name]
        assert tuple(tensor.shape) == shape
        return tensor

    return read


def _scaled(name: str, noise: Tensor, module: nn.Module) -> Tensor:
    if name.endswith("cluster_usage"):
        return torch.where(noise.abs() < 0.05, 0.0, noise.abs() + 0.5)  # some codes were never used
    if name.endswith(("embed_sum", "embedding_sum")):
        return noise * CODEBOOK_SHRINKAGE ** int(re.findall(r"layers\.(\d+)\.", name)[-1])
    if name.endswith(("scale", "gamma")):
        return 0.3 + 0.03 * noise
    if name.endswith(("alpha", "beta")):  # logarithms
        return 0.3 * noise
    if name.endswith("bias"):
        return 0.1 * noise
    if noise.ndim == 1:  # norms
        return 1 + 0.1 * noise
    fan_in = math.prod(noise.shape[1:])
    if noise.ndim == 3:
        layer = module.get_submodule(name.rpartition(".")[0])
        if isinstance(layer, nn.ConvTranspose1d):  # [in, out, kernel]: kernel / stride taps meet in a sample
            fan_in = layer.in_channels * layer.kernel_size[0] // layer.stride[0]
    return noise * _gain(name) / math.sqrt(fan_in)


def _gain(name: str) -> float:
    if name.endswith(("conv2.conv.weight", "block.3.conv.weight")):  # residual branches without a layer scale
        return 0.3
    if re.fullmatch(r"decoder\.[1-9]\.conv\.weight", name):  # the waveform: an RMS near 0.1, far from the clamp
        return 0.05
    if name == "encoder.layers.0.conv.weight":  # speech has an RMS near 0.1
        return 10.0
    if name.startswith("encoder.layers"):  # ELU halves the power
        return 1.5
    return 1.0
