"""Audio to frames of latents and back in torch; native code for a CPU is in encoder.py and codec.py.

Mimi (Defossez et al. 2024) behind latents in place of codes. Source: pocket-tts 4.0.1, `models/mimi.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voice_clone.codec.native_chains import add_seanet_decoder, add_seanet_encoder, add_transformer, take
from voice_clone.codec.windowed_decoder import StreamingDecoder
from voice_clone.families.pocket_tts.config import PIECE_FRAMES, CodecConfig, WindowConfig
from voice_clone.layers import window_transformer
from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d
from voice_clone.layers.seanet import SEANetDecoder, SEANetEncoder
from voice_clone.layers.streaming import ChunkPass, in_pieces
from voice_clone.layers.window_transformer import WindowLayers
from voice_clone.native.codec.chain import Chain
from voice_clone.native.codec.chain_builder import ChainBuilder
from voice_clone.native.matrix.weights import Packed, pack

FADED = 200  # of this part of a second a speech fades in, against a click


def transformer(sizes: WindowConfig) -> WindowLayers:
    """Of the encoder or the decoder."""
    return WindowLayers(
        window_transformer.WindowConfig(
            hidden_size=sizes.d_model,
            intermediate_size=sizes.dim_feedforward,
            num_hidden_layers=sizes.num_layers,
            num_attention_heads=sizes.num_heads,
            num_key_value_heads=sizes.num_heads,
            head_dim=sizes.d_model // sizes.num_heads,
            sliding_window=sizes.context,
            rms_norm_eps=1e-5,
            rope_theta=sizes.max_period,
            norm="layer",
            mlp="gelu_tanh",
        )
    )


class Decoder(StreamingDecoder):
    """Frames of latents to speech."""

    def __init__(self, codec: CodecConfig) -> None:
        super().__init__()
        frame, size = codec.quantizer.dimension, codec.decoder_seanet.dimension
        self.stride, self.faded = codec.stride, codec.sample_rate // FADED
        self.emb_mean, self.emb_std = nn.Parameter(torch.zeros(frame)), nn.Parameter(torch.ones(frame))
        self.upsample = CausalConvTranspose1d(frame, size, 2 * self.stride, self.stride, bias=False)
        self.decoder_transformer = transformer(codec.decoder_transformer)
        self.decoder = SEANetDecoder(codec.decoder_seanet)

    @property
    def device(self) -> torch.device:
        return self.emb_mean.device

    def samples(self, codes: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        latents = codes.to(self.emb_mean.dtype) * self.emb_std[:, None] + self.emb_mean[:, None]
        x = stream(self.upsample, latents)
        x = self.decoder_transformer(x.transpose(1, 2), stream, position * self.stride).transpose(1, 2)
        waveform: Tensor = self.decoder(x, stream).squeeze(1)
        length = waveform.shape[1]
        begins = position[:, None] * (length // codes.shape[2])
        places = begins + torch.arange(length, device=position.device)
        return (waveform * (places / (self.faded - 1)).clamp(max=1).to(waveform.dtype)).clamp(-1, 1)

    @torch.no_grad()
    def latent_chain(self) -> Chain:
        """As native code, from frames to the transformer's positions; attention works at the first rate of a chain."""
        chain = ChainBuilder(len(self.emb_mean))
        chain.transposed(*take(self.upsample.conv), self.stride)
        return chain.build()

    @torch.no_grad()
    def waveform_chain(self) -> Chain:
        """Likewise from there to samples."""
        size = self.decoder_transformer.config.hidden_size
        chain = ChainBuilder(size)
        chain.linear(torch.eye(size), residual="set")
        add_transformer(chain, self.decoder_transformer)
        add_seanet_decoder(chain, self.decoder)
        return chain.build()


class Encoder(nn.Module):
    """Speech to frames of latents."""

    def __init__(self, codec: CodecConfig) -> None:
        super().__init__()
        size, self.stride = codec.seanet.dimension, codec.stride
        self.encoder = SEANetEncoder(codec.seanet)
        self.encoder_transformer = transformer(codec.transformer)
        self.downsample = CausalConv1d(
            size, codec.voice_width, 2 * self.stride, self.stride, bias=False, pad_mode="replicate"
        )
        self.frame_samples = codec.frame_samples

    def forward(self, x: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        """Waveform [B, 1, T] from the frame `position` int64 [B] of each clip on -> latents [B, W, frames]."""
        x = self.encoder(x, stream)
        x = self.encoder_transformer(x.transpose(1, 2), stream, position * self.stride).transpose(1, 2)
        return stream(self.downsample, x, position == 0)

    @torch.inference_mode()
    def encode(self, waveform: Tensor) -> Tensor:
        """Frames of one clip: float [T], mono, not empty -> float32 [ceil(T / samples of a frame), W]."""
        like, samples = self.downsample.conv.weight, self.frame_samples
        padded = nn.functional.pad(waveform, (0, -len(waveform) % samples)).to(like.device, like.dtype)
        pieces = in_pieces(self, padded[None, None], PIECE_FRAMES * samples)
        latents = [self(piece, stream, number * PIECE_FRAMES) for piece, stream, number in pieces]
        return torch.cat(latents, dim=-1)[0].T.contiguous()

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Samples of a frame, its positions, its numbers."""
        return self.frame_samples, self.stride, self.downsample.conv.out_channels

    @torch.no_grad()
    def convolutions(self) -> Chain:
        """From samples to the transformer's positions, natively."""
        chain = ChainBuilder(1, self.frame_samples // self.stride)
        add_seanet_encoder(chain, self.encoder)
        return chain.build()

    @torch.no_grad()
    def positions(self) -> Chain:
        """The transformer."""
        size = self.encoder_transformer.config.hidden_size
        chain = ChainBuilder(size)
        chain.linear(torch.eye(size), residual="set")
        add_transformer(chain, self.encoder_transformer)
        return chain.build()

    @torch.no_grad()
    def downsampling(self) -> Packed:
        """From there to frames: two strides of positions side by side are a row."""
        weight, _ = take(self.downsample.conv)  # [W, C, taps]
        return pack(weight.transpose(1, 2).flatten(1), "fp32")
