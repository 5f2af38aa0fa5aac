"""Waveform to speaker embedding."""

from voice_clone.families.qwen3_tts.encoder_stages import load_speaker_stage
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of Qwen3-TTS."""

    stage = "speaker_encoder"
    load_stage = staticmethod(load_speaker_stage)
