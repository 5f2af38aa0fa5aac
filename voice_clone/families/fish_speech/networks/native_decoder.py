"""The codec decoder as native code. Used on a CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from voice_clone.codec.native_chains import add_transformer, take, waveform_chain
from voice_clone.codec.native_decoder import NativeWindowedDecoder
from voice_clone.families.fish_speech.networks.codec_decoder import CodecDecoder
from voice_clone.native.codec.chain import Chain, ChainBuilder
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
        size = len(decoder.quantizer.post_module.norm.weight)
        self._books = packed.part("codebooks")(
            lambda: [book.codebook.weight.numpy() for book in decoder.quantizer.books]
        )
        latent = Chain.restored(packed.part("latent")(lambda: _latent(decoder).arrays))
        waveform = Chain.restored(packed.part("waveform")(lambda: waveform_chain(decoder, size).arrays))
        packed.keep()
        super().__init__(latent, waveform, decoder.memory)

    def vectors(self, codes: Tensor) -> Tensor:
        """The codes' vectors side by side."""
        parts = [book[codes[:, place].numpy()] for place, book in enumerate(self._books)]
        return torch.from_numpy(np.concatenate(parts, axis=-1))

    def bound(self, samples: Tensor) -> Tensor:
        return samples.contiguous().tanh()


def _latent(decoder: CodecDecoder) -> Chain:
    """From the codes' vectors to the latent: all projections are one, and its result is their sum."""
    weights, biases = zip(*(take(book.out_proj) for book in decoder.quantizer.books), strict=True)
    chain = ChainBuilder(sum(weight.shape[1] for weight in weights))
    chain.linear(torch.cat([weight[..., 0] for weight in weights], dim=1), torch.stack(biases).sum(0), residual="set")
    add_transformer(chain, decoder.quantizer.post_module)
    return chain.build()
