"""Prompt to a stream of frames."""

from tests.support.families.murmur.stages import load_talker
from voice_clone.triton.stages.talker import TalkerModel


class TritonPythonModel(TalkerModel):
    """Of murmur."""

    load_stage = staticmethod(load_talker)
