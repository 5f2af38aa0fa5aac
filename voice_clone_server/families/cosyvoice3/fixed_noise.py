"""The noise that official keeps with its networks: not among the weights, but the same in every process.

Official seeds torch with 0 when it builds the flow's solver, draws the flow's noise, and builds the rest; the networks
that come between draw their first weights of the same stream. Here they are built in the same order and thrown away.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voice_clone.families.cosyvoice3.config import CODES, MEL_BANDS, SPEAKER_SIZE
from voice_clone.families.cosyvoice3.decoder_config import HARMONICS, NOISE_FRAMES, SOURCE_NOISE

FLOW_NOISE = "decoder.rand_noise"
"""FP32 [1, 80, 15000], normal: frame i of a speech, its reference counted, begins with column i."""
SOURCE_NOISE_NAME = "m_source.l_sin_gen.sine_waves"
"""FP32 [1, 1440000, 9], uniform in 0..1: of the first minute of a speech; official keeps five."""

_F0_CHANNELS = 512  # of the released pitch network, whatever the sizes of the checkpoint at hand


def fixed_noise() -> tuple[Tensor, Tensor]:
    """The noise of the flow and that of the vocoder's source."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        flow = torch.randn(1, MEL_BANDS, NOISE_FRAMES)
        nn.Embedding(CODES, MEL_BANDS)
        nn.Linear(SPEAKER_SIZE, MEL_BANDS)
        nn.Conv1d(MEL_BANDS, _F0_CHANNELS, 4)
        for _ in range(4):
            nn.Conv1d(_F0_CHANNELS, _F0_CHANNELS, 3)
        nn.Linear(_F0_CHANNELS, 1)
        torch.rand(1, HARMONICS)
        return flow, torch.rand(1, SOURCE_NOISE, HARMONICS)
