"""Builds chains of native code from the torch modules of a codec, and takes the weights out of them one by one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voice_clone.codec.windowed_decoder import WindowedDecoder
from voice_clone.layers.attention import MLP, RMSNorm
from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d, ConvNeXtBlock
from voice_clone.layers.seanet import ResidualBlock, SEANetDecoder, SEANetEncoder
from voice_clone.layers.vocoder import Affine, DecoderBlock, ResidualUnit, Snake, Vocoder
from voice_clone.layers.window_transformer import WindowLayer, WindowLayers, WindowTransformer
from voice_clone.native.codec.chain import Chain
from voice_clone.native.codec.chain_builder import Activation, ChainBuilder, Residual
from voice_clone.native.codec.chain_builder import Snake as SnakeActivation


def add_transformer(chain: ChainBuilder, transformer: WindowLayers) -> None:
    """Add layers and the norm behind them, if there is one; the layer before them has set the residual signal."""
    config = transformer.config
    for layer in transformer.layers:
        assert isinstance(layer, WindowLayer)
        attention, mlp = layer.self_attn, layer.mlp
        _add_norm(chain, layer.input_layernorm)
        add_linear(chain, attention.qkv_proj)
        chain.attention(
            config.num_attention_heads,
            config.num_key_value_heads,
            config.sliding_window or 0,
            config.rope_theta,
            config.rope_dtype == torch.bfloat16,
        )
        add_linear(chain, attention.o_proj, layer.self_attn_layer_scale.scale, residual="added")
        _add_norm(chain, layer.post_attention_layernorm)
        if isinstance(mlp, MLP):
            add_linear(chain, mlp.fc1, activation=mlp.activation)
        else:
            add_linear(chain, mlp.gate_up_proj)
            chain.gate()
        add_linear(chain, mlp.down_proj, layer.mlp_layer_scale.scale, residual="added")
    if isinstance(transformer, WindowTransformer):
        _add_norm(chain, transformer.norm)


def _add_norm(chain: ChainBuilder, norm: nn.Module) -> None:
    if isinstance(norm, nn.LayerNorm):
        chain.layer_norm(norm.weight, norm.bias, norm.eps)
    else:
        assert isinstance(norm, RMSNorm)
        chain.norm(norm.weight, norm.eps)


def add_residual_block(chain: ChainBuilder, unit: nn.Module) -> None:
    """Add a residual unit between two ELUs; the layer before it has set the residual signal."""
    assert isinstance(unit, ResidualBlock)
    _, dilated, _, pointwise = unit.block
    assert isinstance(dilated, CausalConv1d) and isinstance(pointwise, CausalConv1d)
    chain.convolution(*take(dilated.conv), dilated.conv.dilation[0], activation="elu")
    chain.convolution(*take(pointwise.conv), activation="elu", residual="added")


def add_seanet_encoder(chain: ChainBuilder, encoder: SEANetEncoder) -> None:
    """Add the layers from samples to the latent."""
    *layers, last = (layer for layer in encoder.layers if not isinstance(layer, nn.ELU))
    for layer in layers:
        if isinstance(layer, ResidualBlock):
            add_residual_block(chain, layer)
        else:
            add_convolution(chain, layer, "elu", residual="set")
    add_convolution(chain, last)


def add_seanet_decoder(chain: ChainBuilder, decoder: SEANetDecoder) -> None:
    """Add the layers from the latent to samples."""
    first, *layers, last = (layer for layer in decoder.layers if not isinstance(layer, nn.ELU))
    add_convolution(chain, first, "elu")
    for layer in layers:
        if isinstance(layer, ResidualBlock):
            add_residual_block(chain, layer)
        else:
            _add_transposed(chain, layer, "elu")
    add_convolution(chain, last)


def waveform_chain(decoder: WindowedDecoder, latent: int) -> Chain:
    """Build the chain from a latent of so many channels to samples."""
    chain = ChainBuilder(latent)
    for upsampled in decoder.upsample:
        upsample, block = upsampled.children()
        assert isinstance(block, ConvNeXtBlock)
        _add_transposed(chain, upsample)
        weight, bias = take(block.dwconv.conv)
        assert bias is not None
        chain.depthwise(weight, bias, block.norm.weight, block.norm.bias, block.norm.eps)
        add_linear(chain, block.pwconv1, activation="gelu")
        add_linear(chain, block.pwconv2, block.gamma, residual="added")
    add_vocoder(chain, decoder.decoder)
    return chain.build()


def add_vocoder(chain: ChainBuilder, vocoder: Vocoder) -> None:
    """Add the layers from a latent to samples."""
    *layers, snake, last = vocoder
    blocks = [layer for layer in layers if isinstance(layer, DecoderBlock)]
    snakes = [*(snake_of(block.block[0], block.affine) for block in blocks), snake_of(snake)]
    *before, first = layers[: -len(blocks)]
    for layer in before:
        add_convolution(chain, layer)
    add_convolution(chain, first, snakes[0])
    for block, following in zip(blocks, snakes[1:], strict=True):
        _add_transposed(chain, block.block[1], snake_of(units(block.block)[0].act1))
        add_units(chain, units(block.block), following)
    add_convolution(chain, last)


def units(layers: nn.ModuleList) -> list[ResidualUnit]:
    """Return the residual units among the layers."""
    return [layer for layer in layers if isinstance(layer, ResidualUnit)]


def add_units(chain: ChainBuilder, layers: list[ResidualUnit], following: SnakeActivation) -> None:
    """Add residual units and the activation behind them. The layer before them has set the residual signal and applied
    the activation of the first unit.
    """
    for unit, after in zip(layers, [*(snake_of(unit.act1) for unit in layers[1:]), following], strict=True):
        add_convolution(chain, unit.conv1, snake_of(unit.act2))
        add_convolution(chain, unit.conv2, after, residual="added")


def add_convolution(
    chain: ChainBuilder,
    module: nn.Module,
    activation: Activation = None,
    residual: Residual = "untouched",
) -> None:
    """Add a causal convolution, depthwise or over all channels, and the activation behind it."""
    assert isinstance(module, CausalConv1d)
    [dilation] = module.conv.dilation
    if module.conv.groups > 1:
        assert residual == "untouched" and not isinstance(activation, str)
        chain.filter(*take(module.conv), dilation, activation=activation)
    elif module.stride > 1:
        chain.strided(*take(module.conv), module.stride, activation=activation, residual=residual)
    else:
        chain.convolution(*take(module.conv), dilation, activation=activation, residual=residual)


def _add_transposed(chain: ChainBuilder, module: nn.Module, activation: Activation = None) -> None:
    assert isinstance(module, CausalConvTranspose1d)
    [stride] = module.conv.stride
    chain.transposed(*take(module.conv), stride, activation=activation, residual="set")


def add_linear(
    chain: ChainBuilder,
    module: nn.Module,
    scale: Tensor | None = None,
    residual: Residual = "untouched",
    activation: Activation = None,
) -> None:
    """Add a linear layer, whose outputs are multiplied by `scale`."""
    weight, bias = take(module)
    if scale is not None:
        weight = scale[:, None] * weight
        bias = None if bias is None else scale * bias
    chain.linear(weight, bias, activation=activation, residual=residual)


def take(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Remove a layer's weight and bias from it, so that they are not in memory twice."""
    weight, bias = module.weight, module.bias
    del module.weight, module.bias
    assert isinstance(weight, Tensor)
    return weight, bias if isinstance(bias, Tensor) else None


def snake_of(module: nn.Module, affine: Affine | None = None) -> SnakeActivation:
    """Return a Snake in the form for native layers; `affine` is applied before it."""
    assert isinstance(module, Snake)
    return SnakeActivation(*module.factors, None if affine is None else (affine.scale, affine.shift))
