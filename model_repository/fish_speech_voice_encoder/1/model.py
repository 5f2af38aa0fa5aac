"""Waveform to codec codes (DAC)."""

from voice_clone.families.fish_speech.encoder import load_encoder
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of Fish Speech S2 Pro."""

    stage = "voice_encoder"
    load_stage = staticmethod(load_encoder)
