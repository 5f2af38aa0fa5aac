"""Random networks of the voice encoder as ONNX files, with the inputs and outputs of the released ones.

The speech tokenizer has the released one's layers, and its nodes the names by which `onnx2torch_v3` of s3tokenizer
0.3.0 finds weights in the released file. The speaker encoder is a small network in CAM++'s place: only its input and
its output are those of CAM++.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from tools.families.gains import VECTOR, Gains, around, spread
from voice_clone.families.cosyvoice3.config import SPEAKER_ENCODER, SPEAKER_SIZE, TOKENIZER
from voice_clone.families.cosyvoice3.networks.features import SPEAKER_BANDS
from voice_clone.families.cosyvoice3.networks.speech_tokenizer import SpeechTokenizer
from voice_clone.layers.mel import WHISPER_BANDS

OPSET = 16  # in which a norm is several nodes, as in the released files


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
    network = SpeechTokenizer(shape.width, shape.layers).requires_grad_(False)
    _fill({s3tokenizer_name(name): tensor for name, tensor in network.state_dict().items()}, "tokenizer", seed)
    network.quantizer.project_in.weight.mul_(1.5)  # to -1, 0 and 1 about as often
    return network.eval()


def s3tokenizer_name(name: str) -> str:
    """What the package s3tokenizer calls a tensor of the network."""
    if name.startswith("quantizer."):
        return name.replace("project_in", "_codebook.project_down")
    return f"encoder.{name}"


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
        (torch.zeros(1, WHISPER_BANDS, 50), torch.tensor([50], dtype=torch.int32)),
        {"feats": {2: "frames"}, "feats_length": {}, "indices": {1: "tokens"}},
        folder / f"{TOKENIZER}.onnx",
    )
    speaker = SpeakerNetwork(sizes.channels).requires_grad_(False).eval()
    _fill(speaker.state_dict(), "speaker", seed)
    example = (torch.zeros(1, 50, SPEAKER_BANDS),)
    _export(speaker, example, {"input": {1: "frames"}, "output": {}}, folder / f"{SPEAKER_ENCODER}.onnx")


_TABLE = Gains(
    kinds=((r"_ln\.weight$", around(1, 0.1)), (VECTOR, spread(0.1))),
    gains=((r"(out\.weight|mlp\.2\.weight|fsmn_block\.weight)$", 0.3),),  # residual branches
)


def _fill(tensors: dict[str, Tensor], what: str, seed: int) -> None:
    table = replace(_TABLE, prefix=f"{what} ")
    for name, tensor in tensors.items():
        tensor.copy_(table(name, tuple(tensor.shape), seed))


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
