"""A clip to its timbre: a `voice_clone.stages.protocols.EncoderStage`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tools.example_family.config import WEIGHTS, ChirpConfig, load_config
from tools.example_family.family import CARD
from tools.example_family.prompt import TIMBRE
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.stages.encoder import CardEncoder
from voice_clone.stages.protocols import Arrays, Limit


class TimbreEncoder(nn.Module):
    """The loudness of short pieces of a clip, through a linear layer."""

    def __init__(self, config: ChirpConfig) -> None:
        super().__init__()
        self.config = config
        self.proj = nn.Linear(config.timbre_size, config.timbre_size)

    @torch.inference_mode()
    def encode(self, waveform: Tensor) -> Tensor:
        """[samples] -> [rows, timbre size]."""
        waveform = waveform.to(self.proj.weight.device)
        pieces = waveform.unfold(0, self.config.timbre_samples, self.config.timbre_samples)
        loudness = pieces.reshape(len(pieces), self.config.timbre_size, -1).square().mean(2).sqrt()
        timbre: Tensor = torch.tanh(self.proj(torch.log(loudness + 1e-3)))
        return timbre


class Checkpoint(CheckpointFiles):
    """A checkpoint folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.config = load_config(folder)


class ChirpEncoderStage(CardEncoder[ChirpConfig]):
    """Waveform to timbre, float16 [rows, timbre size]; always on the CPU."""

    card, files, file, prefix = CARD, Checkpoint, WEIGHTS, "encoder."

    @property
    def sample_rate(self) -> int:
        return self.config.sample_rate

    @property
    def width(self) -> int:
        return self.config.timbre_size

    @classmethod
    def identity(cls, config: ChirpConfig) -> dict[str, Any]:
        return {**dataclasses.asdict(config), "talker": None, "decoder": None, "sampling": None}

    @staticmethod
    def empty_network(checkpoint: Checkpoint) -> TimbreEncoder:
        return TimbreEncoder(checkpoint.config)

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """None: any timbre will do."""
        return {}

    def artifacts(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        """The same in every mode."""
        return {TIMBRE: self.frames(waveform).astype(np.float16)}


load_encoder = ChirpEncoderStage.load
