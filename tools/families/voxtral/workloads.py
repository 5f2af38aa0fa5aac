"""What the released model costs: sizes of its networks, from the configuration alone."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from tools.diagnosis.speed import weights
from tools.diagnosis.workload import Workload
from tools.families.voxtral.checkpoint_config import SHAPES
from tools.families.voxtral.checkpoint_maker import voice_rows, write_configuration
from voice_clone.families.voxtral.codec import CodecDecoder
from voice_clone.families.voxtral.talker import OTHERS, Talker

RELEASED = "4b"  # without the voice encoder
PROCESSES = 3  # talker, code2wav and the voice encoder, which is a process without its weights, too


def workloads() -> dict[str, Workload]:
    """The released shape."""
    sizes = SHAPES[RELEASED]
    with tempfile.TemporaryDirectory() as folder:
        config = write_configuration(sizes, Path(folder))
    with torch.device("meta"):
        talker, decoder = Talker(config), CodecDecoder(config.codec)
    flow = config.flow
    layers = replace(
        talker.backbone.config,
        hidden_size=flow.dim,
        intermediate_size=flow.hidden_dim,
        num_hidden_layers=flow.n_layers,
        num_attention_heads=flow.n_heads,
        num_key_value_heads=flow.n_kv_heads,
        head_dim=flow.head_dim,
    )
    return {
        RELEASED: Workload(
            name="Voxtral TTS 4B",
            talker=talker.backbone.config,
            predictor=layers,
            head_weights=sum(weights(getattr(talker.flow, name)) for name in OTHERS),
            table_weights=config.dim * sum(voice_rows(sizes).values()),  # all others stay in the file
            encoder_weights=0,
            decoder_weights=weights(decoder),
            processes=PROCESSES,
            pace=None,  # each pass through the flow head has six rows, and the decoder runs in torch
        )
    }
