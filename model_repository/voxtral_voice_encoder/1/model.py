"""Waveform to codec codes, if the checkpoint has the codec's encoder."""

from voice_clone.families.voxtral.encoder import load_encoder
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of Voxtral TTS."""

    stage = "voice_encoder"
    load_stage = staticmethod(load_encoder)
