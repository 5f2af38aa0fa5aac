"""Prompt to a stream of frames of latents."""

from voice_clone.families.voxcpm2.talker import load_talker
from voice_clone.triton.stages.talker import TalkerModel


class TritonPythonModel(TalkerModel):
    """Of VoxCPM2."""

    load_stage = staticmethod(load_talker)
