"""Frames of latents to audio: a `voice_clone.stages.protocols.DecoderStage`, in torch and as native code for a CPU.

Mimi's decoder (Defossez et al. 2024) behind latents in place of codes. Source: pocket-tts 4.0.1, `models/mimi.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from voice_clone.batching.source import PayloadForm
from voice_clone.codec.decoder import CodecFormat, StreamDecoder, StreamState
from voice_clone.codec.native_chains import add_seanet_decoder, add_transformer, take
from voice_clone.codec.windowed_decoder import StreamingDecoder
from voice_clone.families.pocket_tts.checkpoint import CODEC, Checkpoint
from voice_clone.families.pocket_tts.config import MODEL, CodecConfig, WindowConfig
from voice_clone.families.pocket_tts.family import CARD
from voice_clone.layers import window_transformer
from voice_clone.layers.convolution import CausalConvTranspose1d
from voice_clone.layers.seanet import SEANetConfig, SEANetDecoder
from voice_clone.layers.streaming import ChunkPass
from voice_clone.layers.window_transformer import WindowLayers
from voice_clone.native.arrays import Array
from voice_clone.native.codec.chain import Chain
from voice_clone.native.codec.chain_builder import ChainBuilder
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.stages.decoder import CardDecoder, DecoderNetwork

FADED = 200  # of this part of a second a speech fades in, against a click
PIECE_FRAMES = 24  # decoded at once natively, of all streams together: more would take more memory and be no faster


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
        self.decoder = SEANetDecoder(SEANetConfig(**asdict(codec.decoder_seanet)))

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


class NativeDecoder(StreamDecoder[Array]):
    """As `Decoder`; fp32.

    A stream's samples are the same, bit for bit, in chunks of any size and beside any other streams.

    Args:
        load: the same decoder at each call, on the CPU; called if its weights are not found packed.
        packed: finds the packed weights and keeps them.
    """

    any_shape = True

    @torch.no_grad()
    def __init__(self, load: Callable[[], Decoder], packed: PackedFile = NOWHERE) -> None:
        self._upsample = Chain.restored(packed.part("upsample")(lambda: _upsampling(load()).arrays))
        self._waveform = Chain.restored(packed.part("waveform")(lambda: _waveform(load()).arrays))
        scale = packed.part("scale")(lambda: [load().emb_mean.numpy(), load().emb_std.numpy()])
        [sizes] = packed.part("sizes")(lambda: [np.array([load().stride, load().faded])])
        (self._mean, self._std), (self._stride, self._faded) = scale, (int(size) for size in sizes)
        packed.keep()

    @property
    def device(self) -> None:
        """In numpy's arrays."""

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return self._upsample.nbytes + self._waveform.nbytes

    @property
    def multiplications(self) -> int:
        """Of a frame, in products."""
        return self._upsample.multiplications + self._stride * self._waveform.multiplications

    def new_state(self, batch: int) -> StreamState[Array]:
        return StreamState(
            np.zeros(batch, np.int64), [each.new_state(batch) for each in (self._upsample, self._waveform)]
        )

    def decode_chunk(self, frames: Array, state: StreamState[Array]) -> Array:
        """As of `StreamDecoder`: float32 [B, W, n] -> samples [B, m]."""
        latents = frames.transpose(0, 2, 1) * self._std + self._mean
        size, samples = max(1, PIECE_FRAMES // len(frames)), []
        rows, past = state.buffers
        for begin in range(0, latents.shape[1], size):
            position = state.position + begin
            x, rows = self._upsample(latents[:, begin : begin + size], rows, position)
            waveform, past = self._waveform(x, past, position * self._stride)
            samples.append(waveform[..., 0].copy())
        joined = np.concatenate(samples, axis=-1)
        places = state.position[:, None] * (joined.shape[1] // latents.shape[1]) + np.arange(joined.shape[1])
        state.position, state.buffers = state.position + latents.shape[1], [rows, past]
        faded: Array = joined * np.minimum(places / np.float32(self._faded - 1), 1).astype(np.float32)
        return np.clip(faded, -1, 1)

    def prime(self, frames: Array, state: StreamState[Array]) -> None:
        self.decode_chunk(frames, state)


def _upsampling(decoder: Decoder) -> Chain:
    """From frames to the transformer's positions; attention works at the first rate of a chain alone."""
    chain = ChainBuilder(len(decoder.emb_mean))
    chain.transposed(*take(decoder.upsample.conv), decoder.stride)
    return chain.build()


def _waveform(decoder: Decoder) -> Chain:
    """From there to samples."""
    size = decoder.decoder_transformer.config.hidden_size
    chain = ChainBuilder(size)
    chain.linear(torch.eye(size), residual="set")
    add_transformer(chain, decoder.decoder_transformer)
    add_seanet_decoder(chain, decoder.decoder)
    return chain.build()


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
            checkpoint, MODEL, CODEC, lambda: Decoder(codec), codec_format(codec), codec, NativeDecoder
        )


load_decoder, load_torch_decoder = PocketDecoder.load, PocketDecoder.load_torch
