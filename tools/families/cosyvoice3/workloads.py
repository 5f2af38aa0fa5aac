"""What the released model costs: sizes of its networks, from the configuration alone."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch

from tools.diagnosis.speed import weights
from tools.diagnosis.workload import Workload
from tools.families.cosyvoice3.decoder import FLOWS, VOCODERS, flow_shapes, vocoder_shapes
from tools.families.cosyvoice3.encoders import ENCODERS, SpeakerNetwork
from tools.families.cosyvoice3.talker import TALKERS
from voice_clone.families.cosyvoice3.codec import CPU_PAGE_BYTES
from voice_clone.families.cosyvoice3.networks.speech_tokenizer import SpeechTokenizer
from voice_clone.families.cosyvoice3.talker import Talker

RELEASED = "0.5b"
PROCESSES = 5  # talker, code2wav and the three networks of the voice encoder
POSITIONS = 1800  # of a minute of speech and its prompt, at 25 tokens a second


def workloads() -> dict[str, Workload]:
    """The released shape."""
    encoder = ENCODERS[RELEASED]
    with torch.device("meta"):
        talker = Talker(TALKERS[RELEASED])
        encoders = SpeechTokenizer(encoder.width, encoder.layers), SpeakerNetwork(encoder.channels)
    decoder = {**flow_shapes(FLOWS[RELEASED]), **vocoder_shapes(VOCODERS[RELEASED])}
    return {
        RELEASED: Workload(
            name="CosyVoice3 0.5B",
            talker=talker.model.config,
            predictor=replace(talker.model.config, num_hidden_layers=0),  # a frame is one code
            head_weights=weights(talker.speech.llm_decoder),
            table_weights=weights(talker.speech.speech_embedding),  # that of the text stays in the file
            encoder_weights=sum(map(weights, encoders)),
            decoder_weights=sum(map(prod, decoder.values())),
            processes=PROCESSES,
            pace=None,  # its flow makes the frames of a second at once
            positions=POSITIONS,
            other_stream_bytes=CPU_PAGE_BYTES,  # a minute would take more than all pages, which the streams share
        )
    }
