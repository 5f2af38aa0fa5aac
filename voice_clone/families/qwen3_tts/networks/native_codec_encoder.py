"""The codec encoder as native code, for a CPU; codec_encoder_parts.py packs its weights. Both do without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from voice_clone.array_kinds import Numbers, array_of
from voice_clone.families.qwen3_tts.config import CodecEncoderConfig
from voice_clone.native.arrays import Array
from voice_clone.native.codec.chain import Chain
from voice_clone.native.matrix.linear import PackedLinear
from voice_clone.native.matrix.weights import Packed, pack

TRANSFORMER, DOWNSAMPLE = "transformer", "downsample"
QUANTIZERS = "semantic_residual_vector_quantizer", "acoustic_residual_vector_quantizer"
PIECE_ROWS = 16  # rows of the transformer, 25 a second; the convolutions read the samples of so many at once


def stage_name(index: int) -> str:
    """Return the name of the convolutions between two strides."""
    return f"stage {index}"


class NativeCodecEncoder:
    """Computes the codes of `CodecEncoder` as native code in fp32, for one caller at a time.

    The codes are the same, bit for bit, with any number of threads.

    Args:
        part: the arrays of a part of the network: of a chain those of `Chain.arrays`, of `DOWNSAMPLE` its packed
            matrix, of a quantiser those of `NativeResidualEncoder`.
    """

    def __init__(self, config: CodecEncoderConfig, part: Callable[[str], Sequence[Array]]) -> None:
        self._strides = config.upsampling_ratios[::-1]
        self._taps = config.kernel_size
        self._stages = [Chain.restored(part(stage_name(index))) for index in range(len(self._strides) + 1)]
        self._transformer = Chain.restored(part(TRANSFORMER))
        self._downsample = PackedLinear(Packed(*part(DOWNSAMPLE)), config.hidden_size)
        self._quantizers = [NativeResidualEncoder(part(name)) for name in QUANTIZERS]

    def encode(self, waveform: Numbers) -> NDArray[np.int64]:
        """Return the codes of a waveform, as `CodecEncoder.encode` does."""
        rows = np.concatenate(list(self._convolved(array_of(waveform))))  # [T, C], 25 a second
        x, _ = self._transformer(rows[None], self._transformer.new_state(1), np.zeros(1, np.int64))
        latent = self._downsample(_four_by_two(x[0]))
        return np.concatenate([quantizer(latent) for quantizer in self._quantizers], axis=1)

    def _convolved(self, waveform: Array) -> Iterator[Array]:
        """Yield the input of the transformer, float32 [T, C], piece by piece.

        Rows behind the end of the clip are zero at every stride. The network would make other numbers of silence.
        """
        hop = math.prod(self._strides)
        padded = np.pad(waveform.astype(np.float32), (self._taps - 1, -len(waveform) % hop))
        windows = np.lib.stride_tricks.sliding_window_view(padded, self._taps)  # what the first convolution reads
        states, position = [stage.new_state(1) for stage in self._stages], np.zeros(1, np.int64)
        for begin in range(0, len(windows), PIECE_ROWS * hop):
            x, left = windows[begin : begin + PIECE_ROWS * hop][None], len(waveform) - begin
            for index, stage in enumerate(self._stages):
                x, states[index] = stage(x, states[index], position)
                if index < len(self._strides):
                    stride = self._strides[index]
                    x[:, max(0, left) :] = 0
                    x, left = x.reshape(1, x.shape[1] // stride, -1), -(-left // stride)  # its rows side by side
            yield x[0].copy()


class NativeResidualEncoder:
    """Computes the codes of `ResidualEncoder` as native code.

    Args:
        arrays: the projection, packed; the codebooks' vectors, float32 [K, size, D]; their squares, summed, [K, size].
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        *projection, self._vectors, self._squares = arrays
        _, size, dim = self._vectors.shape
        self._project = PackedLinear(Packed(*projection), dim)
        self._products = [PackedLinear(pack(vectors, "fp32"), size) for vectors in self._vectors]

    def __call__(self, latent: Array) -> NDArray[np.int64]:
        """Return the codes [frames, K] of a latent, float32 [frames, C].

        A distance is computed from the squares of both vectors, as torch does it. Of codes whose distances torch cannot
        tell apart, it takes the first one, and so does this function.
        """
        residual, codes = self._project(latent), []
        for vectors, squares, product in zip(self._vectors, self._squares, self._products, strict=True):
            distances = np.square(residual).sum(axis=1, keepdims=True) + squares - 2 * product(residual)
            nearest = np.sqrt(distances.clip(min=0)).argmin(axis=1)
            residual -= vectors[nearest]
            codes.append(nearest)
        return np.stack(codes, axis=1)


def _four_by_two(x: Array) -> Array:
    """Return what a convolution of four taps and a stride of two reads: [T, C] -> [ceil(T / 2), 4 C].

    The padding is two copies of the first row in front, and one of the last row behind if the number of rows is odd.
    """
    pairs = np.pad(x, ((2, len(x) % 2), (0, 0)), mode="edge").reshape(-1, 2 * x.shape[1])
    return np.concatenate([pairs[:-1], pairs[1:]], axis=1)
