"""The vocoder: mel spectrogram to a 24 kHz waveform, exactly and incrementally (HiFTNet, Li et al. 2023).

A network guesses the pitch of each frame; nine sines of it, and noise, are the source. Three stages of upsampling and
residual blocks, each with the source's spectrum added, make the spectrum of the waveform at 6000 frames a second. All
of it is causal but for the first convolution and the pitch network, which see 4 and 3 frames ahead. The source is
constant within a frame; its phase and the pitch are in fp64, because an error of the pitch adds up. Source: the
official repository's `cosyvoice/hifigan`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.families.cosyvoice3.config import FRAME_SAMPLES, MEL_BANDS, MEL_FRAMES, SAMPLE_RATE
from voice_clone.families.cosyvoice3.decoder_config import (
    BLOCK_KERNELS,
    DILATIONS,
    F0_LOOK_AHEAD,
    FFT,
    HARMONICS,
    HOP,
    KERNELS,
    PRE_LOOK_AHEAD,
    RATES,
    SOURCE_KERNELS,
    SOURCE_NOISE,
    VocoderConfig,
)
from voice_clone.layers.convolution import CausalConv1d
from voice_clone.layers.streaming import ChunkPass, streaming_slots
from voice_clone.layers.vocoder import Snake

MEL_SAMPLES = FRAME_SAMPLES // MEL_FRAMES  # of a frame of mel
UPSAMPLING = math.prod(RATES)  # frames of spectrum of a frame of mel
SINE, VOICED_NOISE = 0.1, 0.003  # amplitudes
VOICED = 10.0  # Hz; what is not above is unvoiced
SLOPE = 0.1
MAX_MAGNITUDE, MAX_SAMPLE = 100.0, 0.99


class PitchNetwork(nn.Module):
    """The pitch of each frame. In fp64."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        first = CausalConv1d(MEL_BANDS, channels, F0_LOOK_AHEAD + 1)
        self.condnet = nn.ModuleList([first, *(CausalConv1d(channels, channels, 3) for _ in range(4))])
        self.classifier = nn.Linear(channels, 1)

    def forward(self, mel: Tensor, drop: int, stream: ChunkPass) -> Tensor:
        """fp64 [1, bands, T] -> Hz [T - drop]: the first convolution's first outputs, before frame 0, are left out."""
        x = stream(self.condnet[0], mel)[..., drop:]
        if x.shape[-1]:
            for conv in self.condnet[1:]:
                x = stream(conv, F.elu(x))
        pitch: Tensor = self.classifier(F.elu(x).transpose(1, 2))
        return pitch.flatten().abs()


class ResidualBlock(nn.Module):
    """Dilated and plain convolutions in turns, each after a Snake. x: [1, C, T]."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.activations1 = nn.ModuleList(Snake(channels) for _ in DILATIONS)
        self.convs1 = nn.ModuleList(CausalConv1d(channels, channels, kernel, dilation=each) for each in DILATIONS)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in DILATIONS)
        self.convs2 = nn.ModuleList(CausalConv1d(channels, channels, kernel) for _ in DILATIONS)

    def forward(self, x: Tensor, stream: ChunkPass) -> Tensor:
        for act1, conv1, act2, conv2 in zip(
            self.activations1, self.convs1, self.activations2, self.convs2, strict=True
        ):
            x = x + stream(conv2, act2(stream(conv1, act1(x))))
        return x


@dataclass(frozen=True)
class VocoderState:
    """A stream's past: what its next frames depend on. Nothing writes into the tensors.

    Attributes:
        buffers: of the convolutions.
        phase: fp64 [harmonics], the sines' cycles until now, in units of a sample.
        source: [n], samples of the source whose spectrum is not used up; 8 mirrored ones before the first.
        overlap: [2, 12], what the past frames add to the next samples, and the same of the windows' squares.
        frames, pitched, made: frames of mel that came, whose pitch is known, and that the stages have made.
    """

    buffers: list[Tensor]
    phase: Tensor
    source: Tensor
    overlap: Tensor
    frames: int = 0
    pitched: int = 0
    made: int = 0

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.buffers, self.phase, self.source, self.overlap))


class Vocoder(nn.Module):
    """mel [80, T] to samples. One stream at a time; in fp32 but for the pitch."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        bins = FFT + 2
        self.f0_predictor = PitchNetwork(config.f0_channels)
        self.sine_weights = nn.Linear(HARMONICS, 1)
        self.source_noise = nn.Parameter(torch.empty(SOURCE_NOISE, HARMONICS))
        self.conv_pre = CausalConv1d(MEL_BANDS, config.channels, PRE_LOOK_AHEAD + 1)
        self.ups, self.source_downs = nn.ModuleList(), nn.ModuleList()
        self.source_resblocks, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for stage, kernel in enumerate(KERNELS):
            channels, rate = config.channels >> (stage + 1), math.prod(RATES[stage + 1 :])
            self.ups.append(CausalConv1d(2 * channels, channels, kernel))
            self.source_downs.append(CausalConv1d(bins, channels, 1 if rate == 1 else 2 * rate, stride=rate))
            self.source_resblocks.append(ResidualBlock(channels, SOURCE_KERNELS[stage]))
            self.resblocks.extend(ResidualBlock(channels, size) for size in BLOCK_KERNELS)
        self.conv_post = CausalConv1d(config.channels >> len(KERNELS), bins, 7)
        self._slots = streaming_slots(self)

    @property
    def device(self) -> torch.device:
        return self.conv_post.conv.weight.device

    def new_state(self) -> VocoderState:
        buffers = [module.new_state(1) for module in self._slots]
        wide = {"device": self.device, "dtype": torch.float64}
        zeros = torch.zeros(HARMONICS, **wide)  # type: ignore[call-overload]
        return VocoderState(buffers, zeros, self._zeros(0), self._zeros(2, FFT - HOP))

    def _zeros(self, *size: int) -> Tensor:
        return torch.zeros(*size, device=self.device)

    @torch.inference_mode()
    def move_on(self, mel: Tensor, state: VocoderState, last: bool = False) -> tuple[Tensor, VocoderState]:
        """The next frames of a stream, log-mel fp32 [80, T] -> samples [m] in -1..1, and the state behind them.

        Four frames and 4 samples are held back, until `last`: then the stream has 480 samples a frame.
        """
        stream = ChunkPass(self._slots, state.buffers)
        frames = state.frames + mel.shape[1]
        if not frames:
            return self._zeros(0), state
        mel = mel[None]
        pitch = self._pitch(mel, state.frames, stream, last)
        source, phase = self._source(pitch, state)
        source = torch.cat([state.source, source])
        pre = stream(self.conv_pre, F.pad(mel, (0, PRE_LOOK_AHEAD if last else 0)))
        x = pre[..., max(0, PRE_LOOK_AHEAD - state.frames) :]
        if last:
            source = torch.cat([source, source[-FFT // 2 - 1 : -1].flip(0)])
        state = replace(state, phase=phase, frames=frames, pitched=state.pitched + len(pitch))
        samples, overlap = self._zeros(0), state.overlap
        if ready := x.shape[-1]:
            count = UPSAMPLING * ready + (state.made == 0)  # the spectrum has a frame at both ends
            spectrum = self._spectrum(source[: HOP * (count - 1) + FFT])
            source = source[HOP * count :].clone()
            made = self._stages(x, spectrum, stream, first=state.made == 0)
            samples, overlap = self._waveform(made, state)
        if last:
            rest = overlap[0, : FFT // 2 - HOP] / overlap[1, : FFT // 2 - HOP]
            samples = torch.cat([samples, rest.clamp(-MAX_SAMPLE, MAX_SAMPLE)])
        after = replace(state, buffers=stream.buffers, source=source, overlap=overlap, made=state.made + ready)
        return samples, after

    def _pitch(self, mel: Tensor, before: int, stream: ChunkPass, last: bool) -> Tensor:
        wide = F.pad(mel, (0, F0_LOOK_AHEAD if last else 0)).double()
        pitch: Tensor = self.f0_predictor(wide, max(0, F0_LOOK_AHEAD - before), stream)
        return pitch.float()

    def _source(self, pitch: Tensor, state: VocoderState) -> tuple[Tensor, Tensor]:
        """Hz [T] -> samples [480 T], 8 more if they are the first, and the sines' phase behind them."""
        if not len(pitch):
            return self._zeros(0), state.phase
        numbers = torch.arange(1, HARMONICS + 1, device=pitch.device)
        cycles = pitch[:, None] * numbers / SAMPLE_RATE % 1
        cumulated = torch.cat([state.phase[None], cycles.double()]).cumsum(0)
        # From here on in fp32 as the official code has it: its rounding is heard, too.
        sines = torch.sin(cumulated[1:].float() * 2 * math.pi * MEL_SAMPLES) * SINE
        voiced = (pitch > VOICED).float()[:, None]
        loudness = voiced * VOICED_NOISE + (1 - voiced) * SINE / 3
        frame = torch.arange(state.pitched, state.pitched + len(pitch), device=pitch.device)
        noise = self.source_noise.view(-1, MEL_SAMPLES, HARMONICS)[frame % (SOURCE_NOISE // MEL_SAMPLES)]
        waves = (sines * voiced)[:, None] + loudness[:, None] * noise  # [T, 480, harmonics]
        source: Tensor = self.sine_weights(waves).tanh().flatten()
        if state.pitched == 0:
            source = torch.cat([source[1 : FFT // 2 + 1].flip(0), source])
        return source, cumulated[-1]

    def _spectrum(self, source: Tensor) -> Tensor:
        """Samples [4 (T - 1) + 16] -> [1, 18, T]: real parts, then imaginary ones."""
        bins = torch.fft.rfft(source.unfold(0, FFT, HOP) * self._window(), dim=-1)
        return torch.cat([bins.real, bins.imag], dim=-1).T[None]

    def _window(self) -> Tensor:
        return torch.hann_window(FFT, device=self.device)

    def _stages(self, x: Tensor, spectrum: Tensor, stream: ChunkPass, first: bool) -> Tensor:
        """[1, C, T] and the source's spectrum -> the waveform's spectrum [18, frames], magnitudes as logarithms."""
        for stage, rate in enumerate(RATES):
            x = F.leaky_relu(x, SLOPE).repeat_interleave(rate, dim=-1)
            x = stream(self.ups[stage], x)
            if first and stage == len(RATES) - 1:
                x = torch.cat([x[..., 1:2], x], dim=-1)
            x = x + self.source_resblocks[stage](self._down(stage, spectrum, stream, first), stream)
            size = len(BLOCK_KERNELS)
            blocks = [self.resblocks[stage * size + number](x, stream) for number in range(size)]
            x = (blocks[0] + blocks[1] + blocks[2]) / size
        made: Tensor = stream(self.conv_post, F.leaky_relu(x))
        return made[0]

    def _down(self, stage: int, spectrum: Tensor, stream: ChunkPass, first: bool) -> Tensor:
        """The source's spectrum at a stage's rate. Where that is lower, its first frame is the past of the others."""
        down = cast(CausalConv1d, self.source_downs[stage])
        if first and down.stride > 1:
            slot = stream.slots[down]
            stream.buffers[slot] = torch.cat([stream.buffers[slot][..., 1:], spectrum[..., :1]], dim=-1)
            spectrum = spectrum[..., 1:]
        return stream(down, spectrum)

    def _waveform(self, made: Tensor, state: VocoderState) -> tuple[Tensor, Tensor]:
        """The waveform's spectrum [18, T] -> the samples to which no later frame adds, and the next overlap."""
        magnitude, phase = made[: FFT // 2 + 1].exp().clamp(max=MAX_MAGNITUDE), made[FFT // 2 + 1 :].sin()
        frames = torch.fft.irfft(torch.polar(magnitude, phase), n=FFT, dim=0)  # [16, T]
        window = self._window()[:, None]
        both = torch.stack([frames * window, window.square().expand_as(frames)])
        length = HOP * (made.shape[1] - 1) + FFT
        added = F.fold(both, (1, length), (1, FFT), stride=(1, HOP)).view(2, length)
        added[:, : FFT - HOP] += state.overlap
        done = length - (FFT - HOP)
        sums = added[:, (FFT // 2 if state.made == 0 else 0) : done]  # before the first sample lie 8 more
        return (sums[0] / sums[1]).clamp(-MAX_SAMPLE, MAX_SAMPLE), added[:, done:].clone()
