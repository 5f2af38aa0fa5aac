"""Prompt to a stream of codec frames."""

from voice_clone.families.voxtral.talker import load_talker
from voice_clone.triton.stages.talker import TalkerModel


class TritonPythonModel(TalkerModel):
    """Of Voxtral TTS."""

    load_stage = staticmethod(load_talker)
