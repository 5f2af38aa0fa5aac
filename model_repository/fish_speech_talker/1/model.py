"""Prompt to a stream of codec frames."""

from voice_clone.families.fish_speech.talker import load_talker
from voice_clone.triton.stages.talker import TalkerModel


class TritonPythonModel(TalkerModel):
    """Of Fish Speech S2 Pro."""

    load_stage = staticmethod(load_talker)
