"""What the released model costs: sizes of its networks, from the configuration alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from tools.diagnosis.speed import stack_weights, weights
from tools.diagnosis.workload import Workload
from tools.families.voxcpm2.audio_vae import AUDIO_VAES
from tools.families.voxcpm2.talker import TALKERS
from voice_clone.families.voxcpm2.networks.audio_decoder import AudioDecoder
from voice_clone.families.voxcpm2.networks.audio_encoder import AudioEncoder
from voice_clone.families.voxcpm2.talker import Talker

RELEASED = "2b"
PROCESSES = 3  # talker, code2wav and the voice encoder
POSITIONS = 700  # of a minute of speech, 375 frames, and its prompt


def workloads() -> dict[str, Workload]:
    """The released shape."""
    with torch.device("meta"):
        talker, sizes = Talker(TALKERS[RELEASED]), AUDIO_VAES[RELEASED]
        encoder, decoder = AudioEncoder(sizes), AudioDecoder(sizes)
    models = talker.models
    table = weights(models.base_lm.embed_tokens)  # stays in the file
    # All but the layers of the language models has at least 8 bits.
    others = weights(models) + weights(talker.sampler) - table - stack_weights(models.config)
    return {
        RELEASED: Workload(
            name="VoxCPM2 2B",
            talker=models.config,
            predictor=replace(models.config, num_hidden_layers=0),
            head_weights=others,
            table_weights=0,
            encoder_weights=weights(encoder),
            decoder_weights=weights(decoder),
            processes=PROCESSES,
            pace=None,  # each frame takes nine passes of eleven rows through a transformer
            positions=POSITIONS,
        )
    }
