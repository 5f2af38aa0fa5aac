"""Waveform to latents (Mimi)."""

from voice_clone.families.pocket_tts.encoder import load_encoder
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of Pocket TTS."""

    stage = "voice_encoder"
    load_stage = staticmethod(load_encoder)
