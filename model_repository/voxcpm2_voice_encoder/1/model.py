"""Waveform to latents (AudioVAE)."""

from voice_clone.families.voxcpm2.encoder import load_encoder
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of VoxCPM2."""

    stage = "voice_encoder"
    load_stage = staticmethod(load_encoder)
