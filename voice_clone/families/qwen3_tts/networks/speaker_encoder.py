"""The speaker encoder: log-mel frames -> ECAPA-TDNN -> one speaker embedding.

Desplanques, Thienpondt, Demuynck, "ECAPA-TDNN: Emphasized Channel Attention, Propagation and Aggregation in TDNN
Based Speaker Verification", 2020; sizes and details as in qwen-tts 0.1.1, `modeling_qwen3_tts.py`
(`Qwen3TTSSpeakerEncoder`, `mel_spectrogram`). Attribute names equal the official tensor names below `speaker_encoder.`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voice_clone.array_kinds import Numbers
from voice_clone.families.qwen3_tts.config import SpeakerEncoderConfig
from voice_clone.families.qwen3_tts.networks.speaker_clip import FMAX, FMIN, HOP, N_FFT, check_clip
from voice_clone.layers import mel


class TimeDelay(nn.Module):
    """Dilated convolution of equal length, reflected at the edges, then ReLU. [B, C, T] -> [B, C', T]."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, padding="same", padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x))


class Res2Net(nn.Module):
    """Channel groups convolved one after the other, each adding the one before (Gao et al. 2019)."""

    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        width = channels // scale
        self.scale = scale
        self.blocks = nn.ModuleList(TimeDelay(width, width, kernel, dilation) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = x.chunk(self.scale, dim=1)
        outputs = [first]
        for index, (block, group) in enumerate(zip(self.blocks, rest, strict=True)):
            outputs.append(block(group if index == 0 else group + outputs[-1]))
        return torch.cat(outputs, dim=1)


class SqueezeExcitation(nn.Module):
    """Scales each channel by a gate computed from all channels' means over time (Hu et al. 2018)."""

    def __init__(self, channels: int, bottleneck: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, bottleneck, 1)
        self.conv2 = nn.Conv1d(bottleneck, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=2, keepdim=True)  # [B, C, 1]
        return x * torch.sigmoid(self.conv2(torch.relu(self.conv1(mean))))


class SERes2Block(nn.Module):
    """TDNN, Res2Net, TDNN, squeeze-excitation, with a residual around all."""

    def __init__(self, channels: int, kernel: int, dilation: int, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        self.tdnn1 = TimeDelay(channels, channels, 1, 1)
        self.res2net_block = Res2Net(channels, config.enc_res2net_scale, kernel, dilation)
        self.tdnn2 = TimeDelay(channels, channels, 1, 1)
        self.se_block = SqueezeExcitation(channels, config.enc_se_channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))
        return out


class AttentiveStatisticsPooling(nn.Module):
    """Mean and standard deviation over time, weighted by an attention of each channel. [B, C, T] -> [B, 2C, 1]."""

    def __init__(self, channels: int, attention_channels: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay(channels * 3, attention_channels, 1, 1)
        self.conv = nn.Conv1d(attention_channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        uniform = torch.full_like(x[:1, :1], 1.0 / x.shape[2])
        context = torch.cat([x, *(part.expand_as(x) for part in _statistics(x, uniform))], dim=1)  # [B, 3C, T]
        weights = self.conv(torch.tanh(self.tdnn(context))).softmax(dim=2)
        return torch.cat(_statistics(x, weights), dim=1)


def _statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and standard deviation over time, each [B, C, 1]."""
    mean = (weights * x).sum(dim=2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(dim=2, keepdim=True)
    return mean, variance.clamp(min=1e-12).sqrt()


class SpeakerEncoder(nn.Module):
    """Waveform -> speaker embedding."""

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        self.config = config
        channels, kernels, dilations = config.enc_channels, config.enc_kernel_sizes, config.enc_dilations
        self.blocks = nn.ModuleList([TimeDelay(config.mel_dim, channels[0], kernels[0], dilations[0])])
        for index in range(1, len(channels) - 1):
            self.blocks.append(SERes2Block(channels[index], kernels[index], dilations[index], config))
        self.mfa = TimeDelay(channels[-1], channels[-1], kernels[-1], dilations[-1])
        self.asp = AttentiveStatisticsPooling(channels[-1], config.enc_attention_channels)
        self.fc = nn.Conv1d(channels[-1] * 2, config.enc_dim, 1)

    def forward(self, mel: Tensor) -> Tensor:
        """Log-mel frames [B, frames, mel_dim] -> embeddings [B, enc_dim]."""
        x = mel.transpose(1, 2)
        outputs = []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        x = self.mfa(torch.cat(outputs[1:], dim=1))
        embedding: Tensor = self.fc(self.asp(x))[..., 0]
        return embedding

    @torch.inference_mode()
    def embed(self, waveform: Numbers) -> Tensor:
        """The speaker embedding of a clip.

        Args:
            waveform: float32 [T], mono, at the configured rate (24 kHz).

        Returns:
            float32 [enc_dim].

        Raises:
            InvalidArgument: the clip is too short for one analysis window, or not finite.
        """
        check_clip(waveform, self.config)
        weight = self.fc.weight
        frames = log_mel(
            torch.as_tensor(waveform).to(weight.device, torch.float32), self.config.mel_dim, self.config.sample_rate
        )
        embedding: Tensor = self(frames.to(weight.dtype)[None])[0].float()
        return embedding


def log_mel(waveform: Tensor, mel_dim: int, sample_rate: int) -> Tensor:
    """Log-mel frames of a mono waveform.

    Args:
        waveform: float32 [T], more than `PADDING` samples.
        mel_dim: number of mel bands.
        sample_rate: Hz.

    Returns:
        float32 [T // 256, mel_dim].
    """
    return mel.log_mel(waveform, mel_dim, sample_rate, N_FFT, HOP, FMIN, FMAX)
