"""code2wav: codec codes to waveform, exactly and incrementally, in torch and, for a CPU, as native code.

Split residual vector quantisation, a convolution, a sliding-window transformer, ConvNeXt upsampling to 50 Hz and a
SnakeBeta decoder to 24 kHz. Every part is causal, so a stream may be decoded in chunks of any size: the chunks
joined equal the decode of all codes at once, and the work depends on the new frames alone.
Source: qwen-tts 0.1.1 `Qwen3TTSTokenizerV2Decoder`. Module names are those of `speech_tokenizer/model.safetensors`
below `decoder.`.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from voice_clone.codec.native_decoder import (
    NativeWindowedDecoder,
    add_convolution,
    add_linear,
    add_transformer,
    take,
    waveform_chain,
)
from voice_clone.codec.windowed_decoder import WindowedDecoder
from voice_clone.families.qwen3_tts.config import CodecDecoderConfig
from voice_clone.layers.convolution import CausalConv1d, Upsample
from voice_clone.layers.rvq import DecoderCodebook, ResidualDecoder, SplitResidualDecoder
from voice_clone.layers.streaming import ChunkPass
from voice_clone.layers.vocoder import SnakeBeta, Vocoder
from voice_clone.layers.window_transformer import WindowConfig, WindowTransformer
from voice_clone.native.codec.chain import Chain, ChainBuilder
from voice_clone.native.matrix.weights import Array
from voice_clone.native.packed_file import NOWHERE, PackedFile


class Transformer(WindowTransformer):
    """Sliding-window transformer between projections from and to the latent. x: [B, latent, T]."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__(WindowConfig.of(config))
        self.input_proj = nn.Linear(config.latent_dim, config.hidden_size)
        self.output_proj = nn.Linear(config.hidden_size, config.latent_dim)

    def forward(self, x: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        hidden = super().forward(self.input_proj(x.transpose(1, 2)), stream, position)  # [B, T, C]
        out: Tensor = self.output_proj(hidden).transpose(1, 2)
        return out


class CodecDecoder(WindowedDecoder):
    """Codec codes to 24 kHz speech."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        latent = config.latent_dim
        self.quantizer = SplitResidualDecoder(
            config.num_quantizers, 1, config.codebook_size, config.codebook_dim // 2, config.codebook_dim
        )
        self.pre_conv = CausalConv1d(config.codebook_dim, latent, 3)
        self.pre_transformer = Transformer(config)
        self.upsample = nn.ModuleList(Upsample(latent, factor) for factor in config.upsampling_ratios)
        self.decoder = Vocoder(latent, config.decoder_dim, config.upsample_rates, SnakeBeta)

    @property
    def device(self) -> torch.device:
        return self.pre_conv.conv.weight.device

    def latent(self, codes: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        hidden = stream(self.pre_conv, self.quantizer.decode(codes))
        latent: Tensor = self.pre_transformer(hidden, stream, position)
        return latent

    def bound(self, waveform: Tensor) -> Tensor:
        return waveform.clamp(-1, 1)


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
        super().__init__(latent, waveform, decoder.receptive_field)

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
