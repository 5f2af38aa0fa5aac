"""Waveform to log-mel frames, in steps of 1 / 2048."""

from voice_clone.families.cosyvoice3.encoder import load_mel
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of CosyVoice3."""

    stage = "mel"
    in_torch = False
    least_rate = 16000
    load_stage = staticmethod(load_mel)
