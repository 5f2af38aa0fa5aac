"""Waveform to codec codes."""

from voice_clone.families.voxtral.encoder_stage import load_encoder
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of Voxtral TTS."""

    stage = "voice_encoder"
    load_stage = staticmethod(load_encoder)
