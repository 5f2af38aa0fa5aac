"""The weights of the codec encoder in torch, as native_codec_encoder.py takes them."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from voice_clone.codec.native_chains import add_residual_block, add_transformer, take
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
from voice_clone.families.qwen3_tts.networks.native_codec_encoder import (
    DOWNSAMPLE,
    QUANTIZERS,
    TRANSFORMER,
    stage_name,
)
from voice_clone.layers.convolution import CausalConv1d
from voice_clone.layers.rvq import ResidualEncoder
from voice_clone.layers.window_transformer import WindowLayers
from voice_clone.native.arrays import Array
from voice_clone.native.codec.chain_builder import ChainBuilder
from voice_clone.native.matrix.weights import pack
from voice_clone.native.packed_file import Make


def parts_of(encoder: CodecEncoder) -> dict[str, Make]:
    """What makes each part. Convolutions and the transformer lose their weights as they are packed."""
    layers: list[nn.Module] = list(encoder.encoder.layers)
    begins = [place for place, layer in enumerate(layers) if isinstance(layer, CausalConv1d)]
    stages = [layers[begin:end] for begin, end in pairwise(begins)]
    made: dict[str, Make] = {
        TRANSFORMER: lambda: _transformer(layers[-1], encoder.encoder_transformer),
        DOWNSAMPLE: lambda: pack(_matrix(encoder.downsample.conv.weight), "fp32").arrays,
    }
    for index, stage in enumerate(stages):
        made[stage_name(index)] = partial(_stage, stage, begins=index == 0)
    for name in QUANTIZERS:
        made[name] = partial(_quantizer, getattr(encoder.quantizer, name))
    return made


def _stage(layers: list[nn.Module], begins: bool) -> list[Array]:
    """A convolution, the residual units behind it, and the activation before the next convolution.

    The convolution that `begins` reads windows of samples; the others, with strides, read their rows side by side.
    """
    first, *units, _ = layers
    assert isinstance(first, CausalConv1d)
    weight, bias = take(first.conv)
    outputs, channels, kernel = weight.shape
    if begins:
        chain = ChainBuilder(channels * kernel)
        chain.linear(weight.flatten(1), bias, activation="elu", residual="set")
    else:
        chain = ChainBuilder(first.stride * channels)
        parts = weight.view(outputs, channels, -1, first.stride).permute(0, 3, 1, 2)  # [O, stride, C, taps]
        chain.convolution(parts.flatten(1, 2), bias, activation="elu", residual="set")
    for unit in units:
        add_residual_block(chain, unit)
    return chain.build().arrays


def _transformer(before: nn.Module, transformer: WindowLayers) -> list[Array]:
    """The last convolution and the transformer."""
    assert isinstance(before, CausalConv1d)
    weight, bias = take(before.conv)
    chain = ChainBuilder(weight.shape[1])
    chain.convolution(weight, bias, residual="set")
    add_transformer(chain, transformer)
    return chain.build().arrays


def _matrix(weight: Tensor) -> Tensor:
    """Of a convolution, [O, C, K], for windows whose taps lie side by side: [O, K * C]."""
    return weight.transpose(1, 2).flatten(1)


def _quantizer(quantizer: ResidualEncoder) -> list[Array]:
    projection = quantizer.input_proj
    weight = torch.eye(quantizer.dim) if isinstance(projection, nn.Identity) else projection.weight[..., 0]
    vectors = torch.stack([book.vectors for book in quantizer.codebooks])
    return [*pack(weight, "fp32").arrays, vectors.numpy(), vectors.square().sum(dim=-1).numpy()]
