"""The weights of a checkpoint's codec encoder, as native_codec_encoder.py takes them."""

from __future__ import annotations

from functools import partial

import numpy as np

from voice_clone.codec.tensors import Tensors
from voice_clone.families.qwen3_tts.config import CodecEncoderConfig
from voice_clone.families.qwen3_tts.networks.native_codec_encoder import (
    DOWNSAMPLE,
    QUANTIZERS,
    TRANSFORMER,
    stage_name,
)
from voice_clone.mapped_weights import Read
from voice_clone.native.arrays import Array
from voice_clone.native.codec.chain_builder import ChainBuilder
from voice_clone.native.matrix.weights import pack
from voice_clone.native.packed_file import Make

MIN_USAGE = np.float32(1e-5)  # as of layers/rvq.py


def parts_of(config: CodecEncoderConfig, quantizers: int, read: Read) -> dict[str, Make]:
    """What makes each part.

    Args:
        quantizers: how many codebooks are used.
        read: the checkpoint's tensors, by their names below `encoder.`.
    """
    weights = _Weights(config, read)
    books = config.num_semantic_quantizers, quantizers - config.num_semantic_quantizers
    made: dict[str, Make] = {TRANSFORMER: weights.transformer, DOWNSAMPLE: weights.downsample}
    for index in range(len(config.upsampling_ratios) + 1):
        made[stage_name(index)] = partial(weights.stage, index)
    for name, count in zip(QUANTIZERS, books, strict=True):
        made[name] = partial(weights.quantizer, name, count)
    return made


class _Weights(Tensors):
    def __init__(self, config: CodecEncoderConfig, read: Read) -> None:
        super().__init__(read)
        self._config = config
        self._strides = config.upsampling_ratios[::-1]
        self._apart = config.num_residual_layers + 2  # layers from a convolution with a stride to the next one

    def stage(self, index: int) -> list[Array]:
        """A convolution, the residual units behind it, and the activation before the next convolution.

        The first one reads windows of samples; the others, with strides, read their rows side by side.
        """
        config, place, dim = self._config, index * self._apart, self._config.num_filters << index
        if index == 0:
            channels, kernel = config.audio_channels, config.kernel_size
            weight, bias = self.convolution(f"encoder.layers.{place}", dim, channels, kernel)
            chain = ChainBuilder(channels * kernel)
            chain.linear(weight.reshape(dim, -1), bias, activation="elu", residual="set")
        else:
            channels, stride = dim // 2, self._strides[index - 1]
            weight, bias = self.convolution(f"encoder.layers.{place}", dim, channels, 2 * stride)
            chain = ChainBuilder(stride * channels)
            parts = weight.reshape(dim, channels, -1, stride).transpose(0, 3, 1, 2)  # [O, stride, C, taps]
            chain.convolution(parts.reshape(dim, stride * channels, -1), bias, activation="elu", residual="set")
        for level in range(config.num_residual_layers if index < len(self._strides) else 0):
            unit, hidden = f"encoder.layers.{place + 1 + level}.block", dim // config.compress
            dilated = self.convolution(f"{unit}.1", hidden, dim, config.residual_kernel_size)
            chain.convolution(*dilated, config.dilation_growth_rate**level, activation="elu")
            chain.convolution(*self.convolution(f"{unit}.3", dim, hidden, 1), activation="elu", residual="added")
        return chain.build().arrays

    def transformer(self) -> list[Array]:
        """The last convolution and the transformer."""
        config, size, inner = self._config, self._config.hidden_size, self._config.intermediate_size
        channels, strides = config.num_filters << len(self._strides), len(self._strides)
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        last = f"encoder.layers.{strides * self._apart + 2}"
        chain = ChainBuilder(channels)
        chain.convolution(*self.convolution(last, size, channels, config.last_kernel_size), residual="set")
        for index in range(config.num_hidden_layers):
            layer = f"encoder_transformer.layers.{index}"
            self._norm(chain, f"{layer}.input_layernorm")
            rows = {"q_proj": heads * dim, "k_proj": kv_heads * dim, "v_proj": kv_heads * dim}
            matrices = [self.read(f"{layer}.self_attn.{name}.weight", count, size) for name, count in rows.items()]
            chain.linear(np.concatenate(matrices))
            chain.attention(heads, kv_heads, 0, config.rope_theta)
            chain.linear(self._scaled(layer, "self_attn", "o_proj", size, heads * dim), residual="added")
            self._norm(chain, f"{layer}.post_attention_layernorm")
            chain.linear(self.read(f"{layer}.mlp.fc1.weight", inner, size), activation="gelu")
            chain.linear(self._scaled(layer, "mlp", "fc2", size, inner), residual="added")
        return chain.build().arrays

    def _norm(self, chain: ChainBuilder, name: str) -> None:
        size = self._config.hidden_size
        weight, bias = self.read(f"{name}.weight", size), self.read(f"{name}.bias", size)
        chain.layer_norm(weight, bias, self._config.norm_eps)

    def _scaled(self, layer: str, part: str, name: str, *shape: int) -> Array:
        scale = self.read(f"{layer}.{part}_layer_scale.scale", shape[0])
        scaled: Array = scale[:, None] * self.read(f"{layer}.{part}.{name}.weight", *shape)
        return scaled

    def downsample(self) -> tuple[Array, Array]:
        """Of a convolution, [O, C, 4], for windows whose taps lie side by side: [O, 4 * C]."""
        size = self._config.hidden_size
        weight = self.read("downsample.conv.weight", size, size, 4)
        return pack(weight.transpose(0, 2, 1).reshape(size, -1), "fp32").arrays

    def quantizer(self, name: str, count: int) -> list[Array]:
        """The projection, the vectors of its codebooks, and the sums of their squares."""
        size, dim, inputs = self._config.codebook_size, self._config.codebook_dim, self._config.hidden_size
        place = f"quantizer.{name}"
        if dim == inputs:
            weight = np.eye(dim, dtype=np.float32)
        else:
            weight = self.read(f"{place}.input_proj.weight", dim, inputs, 1)[..., 0]
        books = [f"{place}.layers.{index}.codebook" for index in range(count)]
        sums = np.stack([self.read(f"{book}.embed_sum", size, dim) for book in books])
        usage = np.stack([self.read(f"{book}.cluster_usage", size) for book in books])
        vectors = sums / usage.clip(min=MIN_USAGE)[..., None]
        return [*pack(weight, "fp32").arrays, vectors, np.square(vectors).sum(axis=-1)]
