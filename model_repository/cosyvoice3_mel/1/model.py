"""Waveform to log-mel frames."""

from voice_clone.families.cosyvoice3.config import LEAST_RATE
from voice_clone.families.cosyvoice3.encoder_stages import load_mel
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of CosyVoice3."""

    stage = "mel"
    in_torch = False
    least_rate = LEAST_RATE
    load_stage = staticmethod(load_mel)
