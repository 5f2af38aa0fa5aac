"""Waveform to codec codes, and its RMS."""

from voice_clone.families.omnivoice.encoder import load_encoder
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of OmniVoice."""

    stage = "voice_encoder"
    load_stage = staticmethod(load_encoder)
