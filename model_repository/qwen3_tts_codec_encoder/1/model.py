"""Waveform to codec codes."""

from voice_clone.families.qwen3_tts.encoder_stages import load_codec_stage
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of Qwen3-TTS."""

    stage = "codec_encoder"
    load_stage = staticmethod(load_codec_stage)
