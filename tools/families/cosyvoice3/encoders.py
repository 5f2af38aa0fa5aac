"""Random networks of the voice encoder as ONNX files, with the inputs and outputs of the released ones.

The speech tokenizer has the released one's layers, as s3tokenizer 0.3.0 has them (`S3TokenizerV3`), and its names. The
speaker encoder is a small network in CAM++'s place: only its input and its output are those of CAM++.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from tools.families.weight_files import noise_of
from voice_clone.families.cosyvoice3.config import SPEAKER_ENCODER, SPEAKER_SIZE, TOKENIZER
from voice_clone.families.cosyvoice3.networks.features import SPEAKER_BANDS, TOKENIZER_BANDS

OPSET = 18
HEAD_DIM = 64
MEMORY = 31  # frames that the memory of an attention sees, its own in the middle
ROTARY_BASE = 10_000.0
LEVELS = 8  # numbers of a token, -1, 0 or 1 each
BELOW_ONE = 0.9990000128746033  # so that no level is rounded from exactly one half


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of both networks: of the tokenizer's transformer, and of the speaker encoder's convolutions."""

    width: int
    layers: int
    channels: int


ENCODERS = {
    "tiny": EncoderShape(width=128, layers=2, channels=32),
    "0.5b-2": EncoderShape(width=1280, layers=2, channels=512),
    "0.5b": EncoderShape(width=1280, layers=12, channels=512),
}


class _Attention(nn.Module):
    """Self-attention with rotary positions, and beside it a memory: a convolution of each channel of the values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_DIM
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.fsmn_block = nn.Conv1d(width, width, MEMORY, padding=MEMORY // 2, groups=width, bias=False)

    def forward(self, x: Tensor, present: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, T, width], and [B, T, 1] with one where there is a frame."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        heard = value * present
        memory = (self.fsmn_block(heard.transpose(1, 2)).transpose(1, 2) + heard) * present
        query, key, value = (part.unflatten(2, (self.heads, HEAD_DIM)).transpose(1, 2) for part in (query, key, value))
        query, key = (part * cos + _half_turned(part) * sin for part in (query, key))
        scores = query @ key.transpose(2, 3) / math.sqrt(HEAD_DIM) + (present - 1).transpose(1, 2)[:, None] * 1e10
        mixed: Tensor = self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2)) + memory
        return mixed


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn, self.attn_ln = _Attention(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor, present: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.attn_ln(x), present, cos, sin)
        out: Tensor = x + self.mlp(self.mlp_ln(x))
        return out


class _Encoder(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(TOKENIZER_BANDS, width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(_Layer(width) for _ in range(layers))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """[B, 128, T] -> [B, ceil(T / 4), width]."""
        for convolution in (self.conv1, self.conv2):
            x = F.gelu(convolution(x * _present(lengths, x.shape[2])[:, None]))
            lengths = (lengths + 1) // 2
        x = x.transpose(1, 2)
        present = _present(lengths, x.shape[1])[:, :, None]
        places = torch.arange(x.shape[1], device=x.device).float()
        turns = ROTARY_BASE ** (-torch.arange(0, HEAD_DIM, 2, device=x.device).float() / HEAD_DIM)
        angles = (places[:, None] * turns).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()
        for layer in self.blocks:
            x = layer(x, present, cos, sin)
        return x


class _Codebook(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.project_down = nn.Linear(width, LEVELS)

    def forward(self, x: Tensor) -> Tensor:
        levels = (self.project_down(x).tanh() * BELOW_ONE).round() + 1
        tokens: Tensor = (levels * 3 ** torch.arange(LEVELS, device=x.device)).sum(-1).int()
        return tokens


class _Quantizer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self._codebook = _Codebook(width)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self._codebook(x)
        return tokens


class SpeechTokenizer(nn.Module):
    """Whisper's frames to speech tokens: two strided convolutions, a transformer, and a rounding of eight numbers.

    Du et al., "CosyVoice 3", 2025; Mentzer et al., "Finite Scalar Quantization", 2023.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.encoder, self.quantizer = _Encoder(width, layers), _Quantizer(width)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        """float32 [B, 128, T] and int32 [B] -> int32 [B, ceil(T / 4)], of which ceil(length / 4) count."""
        tokens: Tensor = self.quantizer(self.encoder(frames, lengths))
        return tokens


class SpeakerNetwork(nn.Module):
    """Frames to one embedding: dilated convolutions, then mean and standard deviation over time."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv1d(
                SPEAKER_BANDS if dilation == 1 else channels, channels, 5, dilation=dilation, padding=2 * dilation
            )
            for dilation in (1, 2, 3, 4)
        )
        self.out = nn.Linear(2 * channels, SPEAKER_SIZE)

    def forward(self, frames: Tensor) -> Tensor:
        """float32 [B, T, 80] -> [B, 192]."""
        x = frames.transpose(1, 2) / 4  # a logarithm of power, less its mean
        for layer in self.layers:
            x = F.relu(layer(x))
        mean = x.mean(2)
        deviation = (x - mean[:, :, None]).square().mean(2).add(1e-6).sqrt()
        embedding: Tensor = self.out(torch.cat([mean, deviation], 1))
        return embedding


def random_tokenizer(shape: EncoderShape, seed: int) -> SpeechTokenizer:
    """A tokenizer whose tokens vary with the sound."""
    network = SpeechTokenizer(shape.width, shape.layers)
    _fill(network, "tokenizer", seed)
    network.state_dict()["quantizer._codebook.project_down.weight"].mul_(1.5)  # to -1, 0 and 1 about as often
    return network


def make_encoders(shape: str, seed: int, folder: Path) -> None:
    """Write speech_tokenizer_v3.onnx and campplus.onnx. Same arguments, same bytes.

    Args:
        shape: a key of `ENCODERS`.
        seed: of all weights.
        folder: that is there.
    """
    sizes = ENCODERS[shape]
    _export(
        random_tokenizer(sizes, seed),
        (torch.zeros(1, TOKENIZER_BANDS, 50), torch.tensor([50], dtype=torch.int32)),
        {"feats": {2: "frames"}, "feats_length": {}, "indices": {1: "tokens"}},
        folder / f"{TOKENIZER}.onnx",
    )
    speaker = SpeakerNetwork(sizes.channels)
    _fill(speaker, "speaker", seed)
    example = (torch.zeros(1, 50, SPEAKER_BANDS),)
    _export(speaker, example, {"input": {1: "frames"}, "output": {}}, folder / f"{SPEAKER_ENCODER}.onnx")


def _present(lengths: Tensor, most: int) -> Tensor:
    """float32 [B, most]: one at places below the length."""
    return (torch.arange(most, device=lengths.device) < lengths[:, None]).float()


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def _fill(network: nn.Module, what: str, seed: int) -> None:
    """Random weights under which signals neither vanish nor explode."""
    for name, tensor in network.state_dict().items():
        noise = noise_of(f"{what} {name}", tuple(tensor.shape), seed)
        if name.endswith("_ln.weight"):
            tensor.copy_(1 + 0.1 * noise)
        elif tensor.ndim == 1:
            tensor.copy_(0.1 * noise)
        else:
            residual = 0.3 if name.endswith(("out.weight", "mlp.2.weight", "fsmn_block.weight")) else 1.0
            tensor.copy_(noise * (residual / math.sqrt(math.prod(tensor.shape[1:]))))
    network.eval().requires_grad_(False)


def _export(network: nn.Module, example: tuple[Tensor, ...], axes: dict[str, dict[int, str]], file: Path) -> None:
    """Trace a network; `axes` has its inputs, then its one output, with the axes of variable size."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the tracing exporter, which takes seconds
        warnings.simplefilter("ignore", TracerWarning)
        warnings.filterwarnings("ignore", "Constant folding", UserWarning)
        torch.onnx.export(
            network,
            example,
            str(file),
            dynamo=False,
            opset_version=OPSET,
            input_names=list(axes)[:-1],
            output_names=list(axes)[-1:],
            dynamic_axes=axes,
        )
