"""A clip to its timbre: a `voice_clone.stages.protocols.EncoderStage`."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tools.example_family.config import WEIGHTS, ChirpConfig, load_config
from tools.example_family.family import CARD
from tools.example_family.prompt import TIMBRE
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.settings import EncoderSettings, Settings
from voice_clone.stages.protocols import Arrays, Call, Limit


class TimbreEncoder(nn.Module):
    """The loudness of short pieces of a clip, through a linear layer."""

    def __init__(self, config: ChirpConfig) -> None:
        super().__init__()
        self.config = config
        self.proj = nn.Linear(config.timbre_size, config.timbre_size)

    @torch.inference_mode()
    def forward(self, waveform: Tensor) -> Tensor:
        """[samples] -> [rows, timbre size]."""
        pieces = waveform.unfold(0, self.config.timbre_samples, self.config.timbre_samples)
        loudness = pieces.reshape(len(pieces), self.config.timbre_size, -1).square().mean(2).sqrt()
        timbre: Tensor = torch.tanh(self.proj(torch.log(loudness + 1e-3)))
        return timbre


class ChirpEncoderStage:
    """Waveform to timbre, float16 [rows, timbre size]."""

    modes = CARD.modes
    presets = ()

    def __init__(self, encoder: TimbreEncoder, config: ChirpConfig, fingerprint: str) -> None:
        self._encoder = encoder
        self._size = config.timbre_size
        self.sample_rate = config.sample_rate
        self.fingerprints = {"fingerprint": fingerprint}

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """None: any timbre will do."""
        return {}

    def encode(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        """The timbre of a clip; the same in every mode."""
        if waveform.size == 0:
            return {TIMBRE: np.zeros((0, self._size), np.float16)}
        return {TIMBRE: self._encoder(torch.from_numpy(waveform)).numpy().astype(np.float16)}


def load_encoder(settings: Settings, call: Call | None = None) -> ChirpEncoderStage:
    """The encoder stage as the settings ask for it; always on the CPU."""
    folder = EncoderSettings.of(settings).checkpoint_dir
    config, files = load_config(folder), CheckpointFiles(folder)
    with torch.device("meta"):
        encoder = TimbreEncoder(config)
    shape = {**dataclasses.asdict(config), "talker": None, "decoder": None, "sampling": None}
    fingerprint = files.fingerprint(shape, WEIGHTS, "encoder.", list(encoder.state_dict()))
    files.load(encoder, WEIGHTS, "encoder.", torch.float32, "cpu")
    return ChirpEncoderStage(encoder.eval().requires_grad_(False), config, fingerprint)
