"""The stage that makes the artifacts of a voice from a clip: a `voice_clone.stages.protocols.EncoderStage`.

Source: pocket-tts 4.0.1, `models/mimi.py` and `data/audio_utils.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import Unsupported
from voice_clone.families.pocket_tts.checkpoint import CODEC, Checkpoint
from voice_clone.families.pocket_tts.config import LONGEST_CLIP, MODEL, PIECE_FRAMES, PocketConfig, shortcoming
from voice_clone.families.pocket_tts.family import CARD
from voice_clone.native.arrays import Array
from voice_clone.native.codec.chain import Chain
from voice_clone.native.matrix.linear import PackedLinear
from voice_clone.native.matrix.weights import Packed
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.stages.encoder import CardEncoder
from voice_clone.stages.protocols import Arrays, Limit, check_clip

if TYPE_CHECKING:  # a stage that finds its weights packed does without torch
    from voice_clone.families.pocket_tts.codec_networks import Encoder

LOUDNESS_RANGE = 35.0  # dB below the loudest part: what is quieter at the end of a clip is cut
PART, FADE, PAUSE = 0.02, 0.02, 0.08  # seconds


class NativeEncoder:
    """Computes what `Encoder` computes, as native code in fp32.

    Args:
        load: returns the same `Encoder`, on the CPU, at each call. It is called if the packed weights are not found.
            The weights are packed one after the other, and each is freed then.
        packed: finds the packed weights.
    """

    def __init__(self, load: Callable[[], Encoder], packed: PackedFile = NOWHERE) -> None:
        self._convolutions = Chain.restored(packed.part("convolutions")(lambda: load().convolutions().arrays))
        self._transformer = Chain.restored(packed.part("positions")(lambda: load().positions().arrays))
        weight = packed.part("downsampling")(lambda: load().downsampling().arrays)
        [sizes] = packed.part("sizes")(lambda: [np.array(load().sizes)])
        self._samples, self._stride, width = (int(size) for size in sizes)
        self._downsample = PackedLinear(Packed(*weight), width)

    def encode(self, waveform: Array) -> Array:
        """Return the latents of a waveform, float32 [frames, numbers], as `Encoder.encode` does."""
        padded = np.pad(waveform, (0, -len(waveform) % self._samples))[None, :, None]
        states, rows = [chain.new_state(1) for chain in (self._convolutions, self._transformer)], []
        size = PIECE_FRAMES * self._samples
        for begin in range(0, padded.shape[1], size):
            position = np.full(1, begin // self._samples * self._stride)
            x, states[0] = self._convolutions(padded[:, begin : begin + size], states[0], position)
            x, states[1] = self._transformer(x, states[1], position)
            rows.append(x[0].copy())
        strides = np.pad(np.concatenate(rows), ((self._stride, 0), (0, 0)), mode="edge")
        strides = strides.reshape(len(strides) // self._stride, -1)
        return self._downsample(np.concatenate([strides[:-1], strides[1:]], axis=1))


def end_on_pause(waveform: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """Return the clip with a short pause at its end, as in the training; else the model would go on with its speech."""
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
    """Makes frames of latents, float32 [frames, numbers], of a waveform."""

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
        from voice_clone.families.pocket_tts.codec_networks import Encoder

        return Encoder(checkpoint.config.mimi)

    @classmethod
    def identity(cls, config: PocketConfig) -> dict[str, Any]:
        sizes = config.mimi.transformer
        return {**super().identity(config), "window": sizes.context, "heads": sizes.num_heads}

    def limits(self, mode: str | None) -> dict[str, Limit]:
        return {CARD.artifacts[0].name: Limit(None, (1, self._most))}  # latents may be any numbers

    def artifacts(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        ended = end_on_pause(waveform, self.sample_rate)
        frames = -(-len(ended) // self.config.mimi.frame_samples)
        check_clip(frames, self.max_frames)
        if frames > self._most:
            raise Unsupported(f"this family takes at most {LONGEST_CLIP:.0f} s of speech; use a shorter clip")
        return {CARD.artifacts[0].name: self.frames(ended)}


load_encoder = PocketEncoder.load
