"""Says why it makes no voice of a clip."""

from voice_clone.families.qwen3_tts.kinds import load_no_encoder
from voice_clone.triton.stages.no_encoder import NoEncoderModel


class TritonPythonModel(NoEncoderModel):
    """Of Qwen3-TTS VoiceDesign."""

    load_stage = staticmethod(load_no_encoder)
