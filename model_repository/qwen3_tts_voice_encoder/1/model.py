"""Waveform to speaker embedding and codec codes."""

from voice_clone.families.qwen3_tts.encoder import load_encoder
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of Qwen3-TTS Base."""

    stage = "voice_encoder"
    load_stage = staticmethod(load_encoder)
