"""Prompt to a stream of codec frames."""

from tests.support.families.chirp.talker_stage import load_talker
from voice_clone.triton.stages.talker import TalkerModel


class TritonPythonModel(TalkerModel):
    """Of chirp."""

    load_stage = staticmethod(load_talker)
