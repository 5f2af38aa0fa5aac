"""Prompt to a stream of codec frames."""

from voice_clone.families.qwen3_tts.talker import load_talker
from voice_clone.triton.stages.talker import TalkerModel


class TritonPythonModel(TalkerModel):
    """Of Qwen3-TTS CustomVoice."""

    load_stage = staticmethod(load_talker)
