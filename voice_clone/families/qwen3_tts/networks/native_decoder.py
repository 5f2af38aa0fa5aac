"""The codec decoder as native code. Used on a CPU."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from voice_clone.codec.native_chains import add_convolution, add_linear, add_transformer, take, waveform_chain
from voice_clone.codec.native_decoder import NativeWindowedDecoder
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.layers.rvq import DecoderCodebook, ResidualDecoder
from voice_clone.native.codec.chain import Chain, ChainBuilder
from voice_clone.native.matrix.weights import Array
from voice_clone.native.packed_file import NOWHERE, PackedFile


class NativeCodecDecoder(NativeWindowedDecoder):
    """As `CodecDecoder`.

    Args:
        decoder: on the CPU. Its weights are packed one after the other and given up. On the meta device if they are
            found packed.
        packed: finds the packed weights and keeps them.
    """

    @torch.no_grad()
    def __init__(self, decoder: CodecDecoder, packed: PackedFile = NOWHERE) -> None:
        size = decoder.pre_transformer.output_proj.out_features
        self._first = packed.part("first codebooks")(partial(_codebooks, decoder.quantizer.rvq_first))
        self._rest = packed.part("other codebooks")(partial(_codebooks, decoder.quantizer.rvq_rest))
        latent = Chain.restored(packed.part("latent")(lambda: _latent(decoder).arrays))
        waveform = Chain.restored(packed.part("waveform")(lambda: waveform_chain(decoder, size).arrays))
        packed.keep()
        super().__init__(latent, waveform, decoder.memory)

    def vectors(self, codes: Tensor) -> Tensor:
        """The sums of the codes' vectors, of both quantisers side by side."""
        books, sums = iter(codes.numpy().transpose(1, 0, 2)), []
        for vectors in (self._first, self._rest):
            total = vectors[0][next(books)]
            for others in vectors[1:]:
                total += others[next(books)]
            sums.append(total)
        return torch.from_numpy(np.concatenate(sums, axis=-1))

    def bound(self, samples: Tensor) -> Tensor:
        return samples.clamp(-1, 1)


def _codebooks(quantizer: ResidualDecoder) -> list[Array]:
    """The vectors of each codebook's codes, [size, D]."""
    vectors = []
    for layer in quantizer.vq.layers:
        [book] = layer.children()
        assert isinstance(book, DecoderCodebook)
        vectors.append(book(torch.arange(len(book.cluster_usage))).numpy())
    return vectors


def _latent(decoder: CodecDecoder) -> Chain:
    """From the quantisers' vectors to the latent."""
    quantizers = decoder.quantizer.rvq_first, decoder.quantizer.rvq_rest
    weight = torch.cat([take(each.output_proj)[0] for each in quantizers], dim=1)[..., 0]
    chain = ChainBuilder(weight.shape[1])
    chain.linear(weight)
    add_convolution(chain, decoder.pre_conv)
    add_linear(chain, decoder.pre_transformer.input_proj, residual="set")
    add_transformer(chain, decoder.pre_transformer)
    add_linear(chain, decoder.pre_transformer.output_proj)
    return chain.build()
