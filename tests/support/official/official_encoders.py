"""What CosyVoice3's official frontend encodes a clip with, for comparison: s3tokenizer 0.3.0 and torchaudio 2.11.0.

tools/env.sh puts both into `.venv/official` without what they depend on, and of torchaudio only the file with Kaldi's
filter banks, which is plain torch.
"""

from __future__ import annotations

import importlib
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.support.oracles.packages import importable
from tools.families.cosyvoice3.encoders import EncoderShape, s3tokenizer_name
from voice_clone.families.cosyvoice3.networks.speech_tokenizer import HEAD_DIM, SpeechTokenizer


@cache
def _package(name: str) -> Any:
    with (
        mock.patch.dict(sys.modules, {"torchaudio": types.ModuleType("torchaudio")}),
        importable(),
    ):
        return importlib.import_module(name)


def official_tokenizer_frames(waveform: Tensor) -> Tensor:
    """float32 [T] at 16 kHz -> [128, T // 160]."""
    frames: Tensor = _package("s3tokenizer").log_mel_spectrogram(waveform)
    return frames


def official_tokens(network: SpeechTokenizer, shape: EncoderShape, waveform: Tensor) -> Tensor:
    """The official network's tokens with the weights of ours: float32 [T] at 16 kHz -> [n]."""
    package = _package("s3tokenizer").model_v3
    config = package.ModelConfigV3(
        n_audio_state=shape.width, n_audio_head=shape.width // HEAD_DIM, n_audio_layer=shape.layers
    )
    official = package.S3TokenizerV3("v3", config).eval()
    official.load_state_dict({s3tokenizer_name(name): tensor for name, tensor in network.state_dict().items()})
    frames = official_tokenizer_frames(waveform)
    tokens, lengths = official.quantize(frames[None], torch.tensor([frames.shape[1]]))
    found: Tensor = tokens[0, : int(lengths)]
    return found


def official_weights(file: Path) -> dict[str, Tensor]:
    """What the official package finds in an ONNX file of the tokenizer, by its own names."""
    found: dict[str, Tensor] = _package("s3tokenizer").utils.onnx2torch_v3(str(file))
    return found


def official_speaker_frames(waveform: Tensor) -> Tensor:
    """As the official frontend calls it: float32 [T] at 16 kHz -> [n, 80]."""
    frames: Tensor = _package("torchaudio_kaldi").fbank(
        waveform[None], num_mel_bins=80, dither=0, sample_frequency=16000
    )
    return frames - frames.mean(dim=0, keepdim=True)
