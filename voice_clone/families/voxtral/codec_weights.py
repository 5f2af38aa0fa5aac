"""The weights of a checkpoint's codec decoder, as codec.py takes them for native code. Needs no torch."""

from __future__ import annotations

import numpy as np

from voice_clone.codec.tensors import LayerSizes, Tensors
from voice_clone.families.voxtral.config import CodecConfig
from voice_clone.mapped_weights import Read
from voice_clone.native.arrays import Array
from voice_clone.native.codec.chain import Chain
from voice_clone.native.codec.chain_builder import ChainBuilder


class CodecDecoderWeights(Tensors):
    """Makes the parts of the decoder.

    Args:
        read: the checkpoint's tensors, by their names in `CodecDecoder`.
    """

    def __init__(self, config: CodecConfig, read: Read) -> None:
        super().__init__(read)
        self._config = config

    def codebook(self) -> Array:
        """The vectors of the semantic codes."""
        config = self._config
        shape = config.semantic_codebook_size, config.semantic_dim
        return self.read("quantizer.semantic_codebook.embedding", *shape)

    def latent_chain(self) -> Chain:
        """From what the quantizer makes of codes to the last transformer."""
        config, place, rate = self._config, 0, 1
        dim, heads, kv_heads = config.dim, config.n_heads, config.n_kv_heads
        sizes = LayerSizes(dim, config.hidden_dim, heads, kv_heads, config.head_dim, config.norm_eps)
        chain = ChainBuilder(config.latent_dim, before="first")
        for number, (layers, kernel, stride) in enumerate(config.decoder_blocks):
            name, inputs = f"decoder_blocks.{place}.conv.weight", dim if number else config.latent_dim
            if number == 0:
                chain.convolution(self.read(name, dim, inputs, kernel), None, residual="set")
            elif (kernel, stride) != (1, 1):
                weight = self.read(name, inputs, dim, kernel)
                chain.transposed(np.pad(weight, ((0, 0), (0, 0), (0, -kernel % stride))), None, stride, residual="set")
            place += number == 0 or (kernel, stride) != (1, 1)
            rate *= stride
            back = config.attn_sliding_window_size // config.rate * rate
            for index in range(layers):
                self._add_layer(chain, f"decoder_blocks.{place}.layers.{index}", sizes, back + 1)
            place += 1
        return chain.build()

    def _add_layer(self, chain: ChainBuilder, name: str, sizes: LayerSizes, window: int) -> None:
        heads, kv_heads, dim = sizes.heads, sizes.kv_heads, sizes.head_dim

        def attention() -> None:
            queries = self.read(f"{name}.self_attn.q_norm.weight", heads * dim)
            keys = self.read(f"{name}.self_attn.k_norm.weight", kv_heads * dim)
            chain.norm_of_heads(heads, kv_heads, (queries, keys), self._config.qk_norm_eps)
            chain.alibi_attention(heads, kv_heads, window)

        self.add_layer(chain, name, sizes, attention)

    def waveform_chain(self) -> Chain:
        """From there to patches of the waveform."""
        config = self._config
        chain = ChainBuilder(config.dim, before="mirrored")
        shape = config.pretransform_patch_size, config.dim, config.patch_proj_kernel_size
        chain.convolution(self.read("output_proj.conv.weight", *shape), None)
        return chain.build()
