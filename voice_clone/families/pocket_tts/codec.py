"""Frames of latents to audio: a `voice_clone.stages.protocols.DecoderStage`, in torch and as native code for a CPU.

Mimi's decoder (Defossez et al. 2024) behind latents in place of codes. Source: pocket-tts 4.0.1, `models/mimi.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from voice_clone.batching.source import PayloadForm
from voice_clone.codec.decoder import CodecFormat, StreamState
from voice_clone.codec.native_chains import add_seanet_decoder, add_transformer, take
from voice_clone.codec.native_decoder import NativeDecoder
from voice_clone.codec.windowed_decoder import StreamingDecoder
from voice_clone.families.pocket_tts.checkpoint import CODEC, Checkpoint
from voice_clone.families.pocket_tts.config import MODEL, CodecConfig, WindowConfig
from voice_clone.families.pocket_tts.family import CARD
from voice_clone.layers import window_transformer
from voice_clone.layers.convolution import CausalConvTranspose1d
from voice_clone.layers.seanet import SEANetDecoder
from voice_clone.layers.streaming import ChunkPass
from voice_clone.layers.window_transformer import WindowLayers
from voice_clone.native.arrays import Array
from voice_clone.native.codec.chain import Chain
from voice_clone.native.codec.chain_builder import ChainBuilder
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.stages.decoder import CardDecoder, DecoderNetwork

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
        """Frames float [B, W, n] -> samples [B, m] in -1..1."""
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


class PocketNativeDecoder(NativeDecoder):
    """As `Decoder`."""

    def __init__(self, load: Callable[[], Decoder], packed: PackedFile = NOWHERE) -> None:
        scale = packed.part("scale")(lambda: [load().emb_mean.numpy(), load().emb_std.numpy()])
        [sizes] = packed.part("sizes")(lambda: [np.array([load().stride, load().faded])])
        (self._mean, self._std), (stride, self._faded) = scale, (int(size) for size in sizes)
        self.rates = 1, stride
        super().__init__(load, packed)

    def rows(self, frames: Array) -> Array:
        return frames.transpose(0, 2, 1) * self._std + self._mean

    def bound(self, samples: Array) -> Array:
        return samples.copy()

    def decode_chunk(self, frames: Array, state: StreamState[Array]) -> Array:
        begins = state.position[:, None]
        samples = super().decode_chunk(frames, state)
        places = begins * (samples.shape[1] // frames.shape[2]) + np.arange(samples.shape[1])
        faded: Array = samples * np.minimum(places / np.float32(self._faded - 1), 1).astype(np.float32)
        return np.clip(faded, -1, 1)


def codec_format(codec: CodecConfig) -> CodecFormat:
    """The frames of a checkpoint's codec."""
    return CodecFormat(PayloadForm(codec.quantizer.dimension, np.float32), codec.frame_samples, codec.sample_rate)


class PocketDecoder(CardDecoder):
    """On any engine."""

    card = CARD

    @staticmethod
    def network(folder: Path) -> DecoderNetwork[Decoder]:
        checkpoint = Checkpoint(folder)
        codec = checkpoint.config.mimi
        return DecoderNetwork(
            checkpoint, MODEL, CODEC, lambda: Decoder(codec), codec_format(codec), codec, PocketNativeDecoder
        )


load_decoder, load_torch_decoder = PocketDecoder.load, PocketDecoder.load_torch
