"""Waveform to timbre."""

from tests.support.families.chirp.encoder_stage import load_encoder
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of chirp."""

    stage = "voice_encoder"
    load_stage = staticmethod(load_encoder)
