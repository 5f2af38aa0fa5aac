"""The speaker encoder as native code, for a CPU. It computes without torch; speaker_encoder.py has its sources."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voice_clone.array_kinds import Numbers, array_of
from voice_clone.families.qwen3_tts.config import SpeakerEncoderConfig
from voice_clone.families.qwen3_tts.networks.speaker_clip import HOP, N_FFT, PADDING, check_clip, mel_filterbank
from voice_clone.mapped_weights import Read
from voice_clone.native.arrays import Array
from voice_clone.native.matrix.linear import PackedLinear
from voice_clone.native.matrix.weights import Packed, as_float32, pack

PIECE_FRAMES = 512  # whose spectra are computed at once, in float64


class Convolution:
    """A dilated convolution of rows [T, I] -> [T, O], reflected at the edges.

    Args:
        read: the checkpoint's tensors, by their names below `speaker_encoder.`.
        name: of the convolution there.
    """

    def __init__(self, read: Read, name: str, inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> None:
        self._kernel, self._dilation = kernel, dilation
        weight = as_float32(read(f"{name}.weight", (outputs, inputs, kernel)))
        matrix = weight.transpose(0, 2, 1).reshape(outputs, kernel * inputs)
        packed = pack(matrix, "fp32", Packed.room_for([matrix], "fp32")[0])
        self._linear = PackedLinear(packed, outputs, as_float32(read(f"{name}.bias", (outputs,))))

    def __call__(self, x: Array) -> Array:
        more = (self._kernel - 1) * self._dilation
        if more:
            padded = np.pad(x, ((more // 2, more - more // 2), (0, 0)), mode="reflect")
            taps = [padded[begin : begin + len(x)] for begin in range(0, more + 1, self._dilation)]
            x = np.concatenate(taps, axis=1)
        return self._linear(x)


class SERes2Block:
    """As of speaker_encoder.py."""

    def __init__(self, read: Read, name: str, channels: int, kernel: int, dilation: int, scale: int, gate: int) -> None:
        width = channels // scale
        self._scale = scale
        self._first = Convolution(read, f"{name}.tdnn1.conv", channels, channels)
        self._groups = [
            Convolution(read, f"{name}.res2net_block.blocks.{place}.conv", width, width, kernel, dilation)
            for place in range(scale - 1)
        ]
        self._second = Convolution(read, f"{name}.tdnn2.conv", channels, channels)
        self._squeeze = Convolution(read, f"{name}.se_block.conv1", channels, gate)
        self._excite = Convolution(read, f"{name}.se_block.conv2", gate, channels)

    def __call__(self, x: Array) -> Array:
        """Rows [T, C] -> [T, C]."""
        first, *rest = np.split(_relu(self._first(x)), self._scale, axis=1)
        outputs = [first]
        for place, (convolve, group) in enumerate(zip(self._groups, rest, strict=True)):
            outputs.append(_relu(convolve(group if place == 0 else group + outputs[-1])))
        y = _relu(self._second(np.concatenate(outputs, axis=1)))
        gate = self._excite(_relu(self._squeeze(y.mean(axis=0, keepdims=True))))
        gated: Array = x + y / (1 + np.exp(-gate))
        return gated


class NativeSpeakerEncoder:
    """As `SpeakerEncoder`; fp32. Embeddings are the same bits with any number of threads. One caller at a time.

    Args:
        read: the checkpoint's tensors, by their names below `speaker_encoder.`.
    """

    def __init__(self, config: SpeakerEncoderConfig, read: Read) -> None:
        self.config = config
        channels, kernels, dilations = config.enc_channels, config.enc_kernel_sizes, config.enc_dilations
        self._first = Convolution(read, "blocks.0.conv", config.mel_dim, channels[0], kernels[0], dilations[0])
        scale, gate, last = config.enc_res2net_scale, config.enc_se_channels, channels[-1]
        self._blocks = [
            SERes2Block(read, f"blocks.{place}", channels[place], kernels[place], dilations[place], scale, gate)
            for place in range(1, len(channels) - 1)
        ]
        self._joined = Convolution(read, "mfa.conv", last, last, kernels[-1], dilations[-1])
        self._context = Convolution(read, "asp.tdnn.conv", 3 * last, config.enc_attention_channels)
        self._scores = Convolution(read, "asp.conv", config.enc_attention_channels, last)
        self._embed = Convolution(read, "fc", 2 * last, config.enc_dim)
        self._filters = PackedLinear(pack(mel_filterbank(config.mel_dim, config.sample_rate), "fp32"), config.mel_dim)
        self._window = np.hanning(N_FFT + 1)[:-1].astype(np.float32)

    def embed(self, waveform: Numbers) -> npt.NDArray[np.float32]:
        check_clip(waveform, self.config)
        x = _relu(self._first(self._log_mel(array_of(waveform).astype(np.float32, copy=False))))
        outputs = []
        for block in self._blocks:
            x = block(x)
            outputs.append(x)
        x = _relu(self._joined(np.concatenate(outputs, axis=1)))
        uniform = _statistics(x, np.float32(1 / len(x)))
        context = np.concatenate([x, *(np.broadcast_to(part, x.shape) for part in uniform)], axis=1)
        scores = self._scores(np.tanh(_relu(self._context(context))))
        weights = np.exp(scores - scores.max(axis=0))
        weights /= weights.sum(axis=0)
        [embedding] = self._embed(np.concatenate(_statistics(x, weights))[None])
        return np.asarray(embedding)

    def _log_mel(self, waveform: Array) -> Array:
        padded = np.pad(waveform, PADDING, mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]
        magnitudes = [
            np.sqrt(np.square(np.abs(np.fft.rfft(windows[begin : begin + PIECE_FRAMES] * self._window))) + 1e-9)
            for begin in range(0, len(windows), PIECE_FRAMES)
        ]
        bands: Array = np.log(self._filters(np.concatenate(magnitudes).astype(np.float32)).clip(min=1e-5))
        return bands


def _relu(x: Array) -> Array:
    """In place."""
    return np.maximum(x, 0, out=x)


def _statistics(x: Array, weights: Numbers) -> tuple[Array, Array]:
    """Weighted mean and standard deviation over time of rows [T, C], each [C]."""
    mean = (weights * x).sum(axis=0)
    variance = (weights * np.square(x - mean)).sum(axis=0)
    return mean, np.sqrt(variance.clip(min=1e-12))
