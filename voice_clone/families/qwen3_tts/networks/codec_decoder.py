"""code2wav: codec codes to waveform, exactly and incrementally, in torch; native_codec_decoder.py computes on a CPU.

Split residual vector quantisation, a convolution, a sliding-window transformer, ConvNeXt upsampling to 50 Hz and a
SnakeBeta decoder to 24 kHz. Every part is causal, so a stream may be decoded in chunks of any size: the chunks
joined equal the decode of all codes at once, and the work depends on the new frames alone.
Source: qwen-tts 0.1.1 `Qwen3TTSTokenizerV2Decoder`. Module names are those of `speech_tokenizer/model.safetensors`
below `decoder.`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voice_clone.codec.windowed_decoder import WindowedDecoder
from voice_clone.families.qwen3_tts.config import CodecDecoderConfig
from voice_clone.layers.convolution import CausalConv1d, Upsample
from voice_clone.layers.rvq import SplitResidualDecoder
from voice_clone.layers.streaming import ChunkPass
from voice_clone.layers.vocoder import SnakeBeta, Vocoder
from voice_clone.layers.window_transformer import WindowConfig, WindowTransformer


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
