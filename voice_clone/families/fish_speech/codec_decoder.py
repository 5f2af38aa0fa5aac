"""code2wav in torch: codec frames to audio. Native code for a CPU is in codec.py."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voice_clone.codec.native_chains import add_transformer, take, waveform_chain
from voice_clone.codec.windowed_decoder import WindowedDecoder
from voice_clone.families.fish_speech.config import DECODER_RATES, QUANTIZER_RATES, CodecConfig
from voice_clone.families.fish_speech.encoder import Codebook, SplitQuantizer, quantizer_transformer
from voice_clone.layers.convolution import Upsample
from voice_clone.layers.rvq import CodeVectors
from voice_clone.layers.streaming import ChunkPass
from voice_clone.layers.vocoder import Snake, Vocoder
from voice_clone.layers.window_transformer import WindowTransformer
from voice_clone.native.codec.chain import Chain
from voice_clone.native.codec.chain_builder import ChainBuilder


class DecoderQuantizer(SplitQuantizer):
    """Codes int64 [B, K, n] -> latent [B, latent, n]."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__(config, Codebook)
        self.post_module = WindowTransformer(quantizer_transformer(config))
        self._vectors = CodeVectors()

    def forward(self, codes: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        if codes.is_cuda:
            total = self._vectors(codes, self.post_module.norm.weight, lambda: [book.vectors for book in self.books])
        else:
            first, second, *others = (book.decode(codes[:, place]) for place, book in enumerate(self.books))
            for other in others:
                second = second + other
            total = (first + second).transpose(1, 2)
        latent: Tensor = self.post_module(total, stream, position)
        return latent.transpose(1, 2)


class CodecDecoder(WindowedDecoder):
    """Codec codes to 44.1 kHz speech."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        latent = config.latent_dim
        self.quantizer = DecoderQuantizer(config)
        self.upsample = nn.ModuleList(Upsample(latent, factor) for factor in reversed(QUANTIZER_RATES))
        self.decoder = Vocoder(latent, config.decoder_dim, DECODER_RATES, Snake)

    @property
    def device(self) -> torch.device:
        weight: Tensor = self.quantizer.post_module.norm.weight
        return weight.device

    def latent(self, codes: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        latent: Tensor = self.quantizer(codes, stream, position)
        return latent

    def bound(self, waveform: Tensor) -> Tensor:
        return waveform.tanh()

    @torch.no_grad()
    def latent_chain(self) -> Chain:
        """As of `WindowedDecoder`. All projections are one, and its result is their sum."""
        weights, biases = zip(*(take(book.out_proj) for book in self.quantizer.books), strict=True)
        weight = torch.cat([each[..., 0] for each in weights], dim=1)
        chain = ChainBuilder(weight.shape[1])
        chain.linear(weight, torch.stack(biases).sum(0), residual="set")
        add_transformer(chain, self.quantizer.post_module)
        return chain.build()

    @torch.no_grad()
    def waveform_chain(self) -> Chain:
        return waveform_chain(self, len(self.quantizer.post_module.norm.weight))
