"""What the released model costs: sizes of its networks, from the configuration alone."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from tools.diagnosis.speed import weights
from tools.diagnosis.workload import Workload
from tools.families.fish_speech.checkpoint_config import SHAPES
from tools.families.fish_speech.checkpoint_maker import write_configuration
from voice_clone.families.fish_speech.codec import CodecDecoder
from voice_clone.families.fish_speech.encoder import CodecEncoder
from voice_clone.families.fish_speech.talker import Talker

RELEASED = "s2-pro"
PROCESSES = 3  # talker, code2wav and the voice encoder
POSITIONS = 1600  # of a minute of speech and its prompt, at 21.5 frames a second


def workloads() -> dict[str, Workload]:
    """The released shape."""
    sizes = SHAPES[RELEASED]
    with tempfile.TemporaryDirectory() as folder:
        config = write_configuration(sizes, Path(folder))
    with torch.device("meta"):
        talker = Talker(config, config.eos_token_id)
        encoder, decoder = CodecEncoder(sizes.codec), CodecDecoder(sizes.codec)
    slow, fast = talker.slow, talker.fast
    semantic = (config.semantic_codes + 1) * slow.config.hidden_size  # the rows of the table that are the slow head
    return {
        RELEASED: Workload(
            name="Fish Speech S2 Pro",
            talker=slow.config,
            predictor=fast.config,
            head_weights=semantic + weights(fast.output),
            table_weights=weights(fast.embeddings) + weights(fast.codebook_embeddings),  # the text's stays in the file
            encoder_weights=weights(encoder),
            decoder_weights=weights(decoder),
            processes=PROCESSES,
            pace=None,  # its codec has a transformer, whose time grows with the stream
            positions=POSITIONS,
        )
    }
