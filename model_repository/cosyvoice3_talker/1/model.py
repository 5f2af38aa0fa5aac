"""Prompt to a stream of speech tokens."""

from voice_clone.families.cosyvoice3.talker import load_talker
from voice_clone.triton.stages.talker import TalkerModel


class TritonPythonModel(TalkerModel):
    """Of CosyVoice3."""

    load_stage = staticmethod(load_talker)
