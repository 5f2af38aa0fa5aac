"""What the released model costs: sizes of its networks, from the configuration alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from tools.diagnosis.speed import weights
from tools.diagnosis.workload import Workload
from tools.families.omnivoice.audio_tokenizer import CODECS
from tools.families.omnivoice.talker import TALKERS
from voice_clone.families.omnivoice.networks.codec_decoder import CodecDecoder
from voice_clone.families.omnivoice.networks.voice_encoder import VoiceEncoder
from voice_clone.families.omnivoice.talker import Talker
from voice_clone.mask_predict.source import stream_bytes

RELEASED = "released"
PROCESSES = 3  # talker, code2wav and the voice encoder
POSITIONS = 800  # of a chunk: 15 s of speech, 10 s of a clip, and the text; the chunks follow one another


def workloads() -> dict[str, Workload]:
    """The released shape."""
    codec = CODECS[RELEASED]
    with torch.device("meta"):
        talker, encoder, decoder = Talker(TALKERS[RELEASED]), VoiceEncoder(codec), CodecDecoder(codec)
    layers = talker.llm.config
    return {
        RELEASED: Workload(
            name="OmniVoice 0.6B",
            talker=layers,
            predictor=replace(layers, num_hidden_layers=0),  # all codes of a frame come from one row
            head_weights=weights(talker.audio_heads),
            table_weights=weights(talker.audio_embeddings),  # that of the text stays in the file
            encoder_weights=weights(encoder),
            decoder_weights=weights(decoder),
            processes=PROCESSES,
            pace=None,  # each step takes all frames of a chunk at once
            positions=0,  # no keys and values are kept
            other_stream_bytes=stream_bytes(talker, POSITIONS),
        )
    }
