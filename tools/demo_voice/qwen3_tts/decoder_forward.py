"""code2wav as a function that gradients flow through: the package's modules, which decode in place and in chunks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder, Transformer
from voice_clone.layers.attention import RMSNorm, apply_rotary, rotary_cos_sin, split_heads
from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d, ConvNeXtBlock, Upsample
from voice_clone.layers.vocoder import DecoderBlock, ResidualUnit, SnakeBeta
from voice_clone.layers.window_transformer import WindowLayer


def decode(decoder: CodecDecoder, codes: Tensor, heard: int) -> Tensor:
    """Codes int64 [B, K, T] -> waveform of the last `heard` frames, unclamped: [B, heard * 1920].

    The transformer sees all frames; the convolutions behind it start from silence at the first frame that is heard.
    """
    hidden = _convolve(decoder.pre_conv, decoder.quantizer.decode(codes))
    hidden = _transform(decoder.pre_transformer, hidden)[..., -heard:]
    for stage in decoder.upsample:
        assert isinstance(stage, Upsample)
        upsample, block = stage
        hidden = _convnext(block, _upsample(upsample, hidden))
    first, *blocks, act, last = decoder.decoder
    hidden = _convolve(first, hidden)
    for block in blocks:
        hidden = _decoder_block(block, hidden)
    return _convolve(last, snake(act, hidden)).squeeze(1)


def snake(module: nn.Module, x: Tensor) -> Tensor:
    """SnakeBeta, not in place. [B, C, T]."""
    assert isinstance(module, SnakeBeta)
    alpha, beta = module.alpha.exp()[:, None], module.beta.exp()[:, None]
    return x + (1.0 / (beta + 1e-9)) * torch.sin(x * alpha).square()


def norm(module: RMSNorm, x: Tensor) -> Tensor:
    """RMSNorm, not in place. [..., C]."""
    return F.rms_norm(x, x.shape[-1:], module.weight, module.eps)


def _convolve(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, CausalConv1d)
    out: Tensor = module(x)
    return out


def _upsample(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, CausalConvTranspose1d)
    length = x.shape[-1] * module.conv.stride[0]
    return F.conv_transpose1d(x, module.conv.weight, module.conv.bias, module.conv.stride)[..., :length]


def _convnext(block: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(block, ConvNeXtBlock)
    hidden = block.norm(_convolve(block.dwconv, x).transpose(1, 2))
    hidden = block.gamma * block.pwconv2(F.gelu(block.pwconv1(hidden)))
    out: Tensor = x + hidden.transpose(1, 2)
    return out


def _decoder_block(block: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(block, DecoderBlock)
    act, upsample, *units = block.block
    x = _upsample(upsample, snake(act, x))
    for unit in units:
        assert isinstance(unit, ResidualUnit)
        hidden = _convolve(unit.conv1, snake(unit.act1, x))
        x = x + _convolve(unit.conv2, snake(unit.act2, hidden))
    return x


def _transform(transformer: Transformer, x: Tensor) -> Tensor:
    """[B, latent, T] -> [B, latent, T]."""
    config = transformer.config
    hidden = transformer.input_proj(x.transpose(1, 2))
    places = torch.arange(hidden.shape[1], device=x.device)
    cos, sin = rotary_cos_sin(places, config.head_dim, config.rope_theta)
    distance = places[:, None] - places
    assert config.sliding_window is not None
    mask = (distance >= 0) & (distance < config.sliding_window)
    for layer in transformer.layers:
        assert isinstance(layer, WindowLayer)
        attention = layer.self_attn
        read = norm(layer.input_layernorm, hidden)
        qkv = split_heads(attention.qkv_proj(read), config.head_dim)
        turned = apply_rotary(qkv[:, : attention.heads + attention.kv_heads], cos, sin)
        q, k, v = turned[:, : attention.heads], turned[:, attention.heads :], qkv[:, turned.shape[1] :]
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        hidden = hidden + layer.self_attn_layer_scale(attention.o_proj(seen.transpose(1, 2).flatten(2)))
        hidden = hidden + layer.mlp_layer_scale(layer.mlp(norm(layer.post_attention_layernorm, hidden)))
    out: Tensor = transformer.output_proj(norm(transformer.norm, hidden)).transpose(1, 2)
    return out
