"""A clip to the artifacts of its voice: a `voice_clone.stages.protocols.EncoderStage`.

Source: pocket-tts 4.0.1, `models/mimi.py` and `data/audio_utils.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from voice_clone.codec.native_chains import add_seanet_encoder, add_transformer, take
from voice_clone.errors import Unsupported
from voice_clone.families.pocket_tts.checkpoint import CODEC, Checkpoint
from voice_clone.families.pocket_tts.codec import transformer
from voice_clone.families.pocket_tts.config import LONGEST_CLIP, MODEL, CodecConfig, PocketConfig, shortcoming
from voice_clone.families.pocket_tts.family import CARD
from voice_clone.layers.convolution import CausalConv1d
from voice_clone.layers.seanet import SEANetEncoder
from voice_clone.layers.streaming import ChunkPass, in_pieces
from voice_clone.native.codec.chain_builder import ChainBuilder
from voice_clone.native.matrix.linear import PackedLinear
from voice_clone.native.matrix.weights import pack
from voice_clone.stages.encoder import CardEncoder
from voice_clone.stages.protocols import Arrays, Limit, check_clip

PIECE_FRAMES = 25  # encoded at once: memory does not grow with a clip
LOUDNESS_RANGE = 35.0  # dB below the loudest part: what is quieter at the end of a clip is cut
PART, FADE, PAUSE = 0.02, 0.02, 0.08  # seconds


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


class NativeEncoder:
    """As `Encoder`, whose weights are packed one after the other and given up; fp32."""

    @torch.no_grad()
    def __init__(self, encoder: Encoder) -> None:
        self._samples, self._stride = encoder.frame_samples, encoder.stride
        size = encoder.encoder_transformer.config.hidden_size
        convolutions = ChainBuilder(1, self._samples // self._stride)
        add_seanet_encoder(convolutions, encoder.encoder)
        positions = ChainBuilder(size)
        positions.linear(torch.eye(size), residual="set")
        add_transformer(positions, encoder.encoder_transformer)
        self._convolutions, self._transformer = convolutions.build(), positions.build()
        weight, _ = take(encoder.downsample.conv)  # [W, C, taps]
        self._downsample = PackedLinear(pack(weight.transpose(1, 2).flatten(1), "fp32"), len(weight))

    def encode(self, waveform: Tensor) -> Tensor:
        """As of `Encoder`."""
        samples = waveform.numpy().astype(np.float32)
        padded = np.pad(samples, (0, -len(samples) % self._samples))[None, :, None]
        states, rows = [chain.new_state(1) for chain in (self._convolutions, self._transformer)], []
        size = PIECE_FRAMES * self._samples
        for begin in range(0, padded.shape[1], size):
            position = np.full(1, begin // self._samples * self._stride)
            x, states[0] = self._convolutions(padded[:, begin : begin + size], states[0], position)
            x, states[1] = self._transformer(x, states[1], position)
            rows.append(x[0].copy())
        strides = np.pad(np.concatenate(rows), ((self._stride, 0), (0, 0)), mode="edge")
        strides = strides.reshape(len(strides) // self._stride, -1)
        return torch.from_numpy(self._downsample(np.concatenate([strides[:-1], strides[1:]], axis=1)))


def end_on_pause(waveform: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """A clip that ends with a short pause, as those of the training do: behind speech the model would go on with it."""
    part = max(1, int(PART * rate))
    count = len(waveform) // part
    if not count:
        return waveform
    loudness = np.sqrt(np.square(waveform[: count * part].reshape(count, part)).mean(axis=1, dtype=np.float32))
    decibels = 20 * np.log10(loudness + 1e-12)
    [loud] = np.nonzero(decibels > decibels.max() - LOUDNESS_RANGE)
    ended = waveform[: (loud[-1] + 1) * part].copy()
    fade = min(int(FADE * rate), len(ended))
    ended[len(ended) - fade :] *= np.linspace(1, 0, fade, dtype=np.float32)
    return np.concatenate([ended, np.zeros(int(PAUSE * rate), np.float32)])


class PocketEncoder(CardEncoder[PocketConfig]):
    """Waveform to frames of latents, float32 [frames, numbers]."""

    card, files, file, prefix, native = CARD, Checkpoint, MODEL, CODEC, NativeEncoder
    shortcoming = staticmethod(shortcoming)

    def __init__(self, network: Any, config: PocketConfig, fingerprint: str, max_frames: int) -> None:
        super().__init__(network, config, fingerprint, max_frames)
        self._most = round(LONGEST_CLIP * config.mimi.frame_rate) + 1

    @property
    def sample_rate(self) -> int:
        return self.config.mimi.sample_rate

    @property
    def width(self) -> int:
        return self.config.mimi.voice_width

    @staticmethod
    def empty_network(checkpoint: Checkpoint) -> Encoder:
        return Encoder(checkpoint.config.mimi)

    @classmethod
    def identity(cls, config: PocketConfig) -> dict[str, Any]:
        sizes = config.mimi.transformer
        return {**super().identity(config), "window": sizes.context, "heads": sizes.num_heads}

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """Latents may be any numbers."""
        return {CARD.artifacts[0].name: Limit(None, (1, self._most))}

    def artifacts(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        ended = end_on_pause(waveform, self.sample_rate)
        frames = -(-len(ended) // self.config.mimi.frame_samples)
        check_clip(frames, self.max_frames)
        if frames > self._most:
            raise Unsupported(f"this family takes at most {LONGEST_CLIP:.0f} s of speech; use a shorter clip")
        return {CARD.artifacts[0].name: self.frames(ended)}


load_encoder = PocketEncoder.load
