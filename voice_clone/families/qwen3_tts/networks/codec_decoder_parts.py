"""The weights of a checkpoint's codec decoder, as native_codec_decoder.py takes them."""

from __future__ import annotations

from functools import partial

import numpy as np

from voice_clone.codec.tensors import LayerSizes, Tensors, scaled
from voice_clone.families.qwen3_tts.config import CodecDecoderConfig
from voice_clone.families.qwen3_tts.networks.codec_encoder_parts import MIN_USAGE
from voice_clone.mapped_weights import Read
from voice_clone.native.arrays import Array
from voice_clone.native.codec.chain import Chain
from voice_clone.native.codec.chain_builder import ChainBuilder, Snake

DILATIONS = (1, 3, 9)  # as of layers/vocoder.py
NORM_EPS = 1e-6  # of ConvNeXt blocks


class CodecDecoderWeights(Tensors):
    """Makes the parts of the decoder.

    Args:
        read: the checkpoint's tensors, by their names below `decoder.`.
    """

    def __init__(self, config: CodecDecoderConfig, read: Read) -> None:
        super().__init__(read)
        self._config = config

    def codebooks(self, first: bool) -> list[Array]:
        """The vectors of each codebook's codes, [size, D], of the first quantiser, or of the other one."""
        size, dim = self._config.codebook_size, self._config.codebook_dim // 2
        part, count = ("rvq_first", 1) if first else ("rvq_rest", self._config.num_quantizers - 1)
        vectors = []
        for index in range(count):
            book = f"quantizer.{part}.vq.layers.{index}._codebook"
            usage = self.read(f"{book}.cluster_usage", size).clip(min=MIN_USAGE)
            vectors.append(self.read(f"{book}.embedding_sum", size, dim) / usage[:, None])
        return vectors

    def latent_chain(self) -> Chain:
        """From the codes' vectors to the latent."""
        config, width, name = self._config, self._config.codebook_dim, "pre_transformer"
        size, inner, latent = config.hidden_size, config.intermediate_size, config.latent_dim
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        names = "quantizer.rvq_first.output_proj", "quantizer.rvq_rest.output_proj"
        projections = [self.read(f"{each}.weight", width, width // 2, 1)[..., 0] for each in names]
        chain = ChainBuilder(2 * (width // 2))
        chain.linear(np.concatenate(projections, axis=1))
        chain.convolution(*self.convolution("pre_conv", latent, width, 3))
        chain.linear(*self.linear(f"{name}.input_proj", size, latent), residual="set")
        sizes = LayerSizes(size, inner, heads, kv_heads, dim, config.rms_norm_eps, config.attention_bias)
        window, theta = config.sliding_window, config.rope_theta
        for index in range(config.num_hidden_layers):
            attention = partial(chain.attention, heads, kv_heads, window, theta)
            self.add_layer(chain, f"{name}.layers.{index}", sizes, attention)
        chain.norm(self.read(f"{name}.norm.weight", size), config.rms_norm_eps)
        chain.linear(*self.linear(f"{name}.output_proj", latent, size))
        return chain.build()

    def waveform_chain(self) -> Chain:
        """From the latent to samples."""
        config, latent, dim = self._config, self._config.latent_dim, self._config.decoder_dim
        chain = ChainBuilder(latent)
        for index, factor in enumerate(config.upsampling_ratios):
            block = f"upsample.{index}.1"
            chain.transposed(*self.transposed(f"upsample.{index}.0", latent, latent, factor), factor, residual="set")
            weight, bias = (self.read(f"{block}.norm.{each}", latent) for each in ("weight", "bias"))
            chain.depthwise(*self.convolution(f"{block}.dwconv", latent, 1, 7), weight, bias, NORM_EPS)
            chain.linear(*self.linear(f"{block}.pwconv1", 4 * latent, latent), activation="gelu")
            out = self.linear(f"{block}.pwconv2", latent, 4 * latent)
            chain.linear(*scaled(self.read(f"{block}.gamma", latent), *out), residual="added")
        last = len(config.upsample_rates) + 1
        first = self.convolution("decoder.0", dim, latent, 7)
        chain.convolution(*first, activation=self._snake("decoder.1.block.0", dim))
        for index, rate in enumerate(config.upsample_rates, 1):
            block, dim = f"decoder.{index}.block", dim // 2
            upsample = self.transposed(f"{block}.1", 2 * dim, dim, 2 * rate)
            chain.transposed(*upsample, rate, activation=self._snake(f"{block}.2.act1", dim), residual="set")
            behind = f"decoder.{last}" if index + 1 == last else f"decoder.{index + 1}.block.0"
            for place, dilation in enumerate(DILATIONS, 2):
                unit = f"{block}.{place}"
                following = f"{block}.{place + 1}.act1" if dilation < DILATIONS[-1] else behind
                dilated = self.convolution(f"{unit}.conv1", dim, dim, 7)
                chain.convolution(*dilated, dilation, activation=self._snake(f"{unit}.act2", dim))
                pointwise = self.convolution(f"{unit}.conv2", dim, dim, 1)
                chain.convolution(*pointwise, activation=self._snake(following, dim), residual="added")
        chain.convolution(*self.convolution(f"decoder.{last + 1}", 1, dim, 7))
        return chain.build()

    def _snake(self, name: str, size: int) -> Snake:
        """As of `SnakeBeta` in layers/vocoder.py."""
        alpha, beta = (np.exp(self.read(f"{name}.{each}", size), dtype=np.float64) for each in ("alpha", "beta"))
        return Snake(alpha, 1 / (beta + 1e-9))
