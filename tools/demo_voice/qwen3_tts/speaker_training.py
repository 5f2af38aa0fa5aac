"""Trains the speaker encoder to predict what a speaker was made of: the voice, and how it was varied.

To distinguish 365 voices by their numbers takes far more examples, and a network that knows numbers knows nothing of a
speaker it has not heard. The talker's training goes on with it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.demo_voice.qwen3_tts.analysis import pitch_of
from tools.demo_voice.qwen3_tts.corpus import Clip, Recordings
from tools.demo_voice.qwen3_tts.variations import FACTORS
from tools.demo_voice.speakers import speakers
from tools.demo_voice.training import Plan, generator_of
from voice_clone.families.qwen3_tts.config import SpeakerEncoderConfig
from voice_clone.families.qwen3_tts.networks.speaker_clip import HOP
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder, log_mel

PLAN = Plan(steps=800, rate=1e-3)
BATCH = 24
LENGTHS = (120, 260)  # mel frames of a clip, 94 a second
VOICES = ("slt", "awb", "rms", "kal16")
TRAITS = 3  # of a speaker besides
_MEL_MEAN, _MEL_SPREAD = -6.5, 2.5  # of log-mel frames


class SpeakerModel(nn.Module):
    """The speaker encoder, and a reader of what a speaker was made of, which is thrown away."""

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        self.speaker_encoder = SpeakerEncoder(config)
        self.reader = nn.Linear(config.enc_dim, len(VOICES) + TRAITS)
        with torch.no_grad():
            # Log-mels are far below zero: without this most channels of the first layer never fire, or always do.
            weight = self.speaker_encoder.get_parameter("blocks.0.conv.weight")
            weight.div_(_MEL_SPREAD)
            self.speaker_encoder.get_parameter("blocks.0.conv.bias").sub_(_MEL_MEAN * weight.sum(dim=(1, 2)))

    def read(self, mels: Tensor, made_of: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Embeddings [B, C] of log-mels [B, frames, bands], and their error in what the speakers are made of."""
        with torch.autocast(mels.device.type, enabled=False):  # small differences of large values
            embeddings = self.speaker_encoder(mels)
            read = self.reader(embeddings)
        voices, traits = made_of
        loss = F.cross_entropy(read[:, : len(VOICES)], voices) + F.mse_loss(read[:, len(VOICES) :], traits)
        return embeddings, loss


class SpeakerTask:
    """The loss of a step."""

    def __init__(
        self, model: SpeakerModel, recordings: Recordings, config: SpeakerEncoderConfig, seed: int, device: torch.device
    ) -> None:
        self._model, self._recordings, self._config, self._seed, self._device = model, recordings, config, seed, device
        self._makings = makings()

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        """The loss of step `step`."""
        source = np.random.default_rng(int(torch.randint(2**62, (), generator=generator_of(self._seed, step))))
        length = int(source.integers(*LENGTHS))
        mels, numbers = [], []
        for _ in range(BATCH):
            index, copy = int(source.integers(len(self._recordings))), int(source.integers(self._recordings.copies))
            mels.append(mel_of(self._recordings.clip(index, copy), length, self._config, source))
            numbers.append(self._recordings.speakers[index] * self._recordings.copies + copy)
        voices, traits = (each[numbers].to(self._device) for each in self._makings)
        _, loss = self._model.read(torch.stack(mels).to(self._device), (voices, traits))
        return loss, {"speaker": loss.item()}


def mel_of(clip: Clip, length: int, config: SpeakerEncoderConfig, source: np.random.Generator) -> Tensor:
    """A stretch of a clip as the speaker encoder reads it: [length, bands]; a shorter clip is repeated."""
    samples = clip.play().samples
    begin = int(source.integers(max(1, len(samples) - length * HOP)))
    stretch = torch.from_numpy(np.resize(samples[begin:], length * HOP))
    return log_mel(stretch, config.mel_dim, config.sample_rate)[:length]


def makings() -> tuple[Tensor, Tensor]:
    """What the voices are made of, each speaker in each variation.

    Returns:
        The synthesiser's voice int64 [N], a place in VOICES; and the logarithms of formants, pitch and stretch, of mean
        0 and standard deviation 1 over all: float32 [N, TRAITS].
    """
    voices, traits = [], []
    for speaker in speakers():
        for factor in FACTORS:
            voices.append(VOICES.index(speaker.voice))
            traits.append([speaker.formants * factor, pitch_of(speaker, factor), speaker.stretch / factor])
    logs = torch.tensor(traits).log()
    return torch.tensor(voices), (logs - logs.mean(dim=0)) / logs.std(dim=0)
