"""Prompt to codec frames, all of an utterance at once."""

from voice_clone.families.omnivoice.talker import load_talker
from voice_clone.triton.stages.talker import TalkerModel


class TritonPythonModel(TalkerModel):
    """Of OmniVoice."""

    load_stage = staticmethod(load_talker)
