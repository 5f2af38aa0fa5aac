"""Text and voice to the talker's prompt: tokenises, checks, asks speaker_cache."""

from voice_clone.families.voxcpm2.prompt import load_prompt
from voice_clone.triton.stages.prompt import PromptModel


class TritonPythonModel(PromptModel):
    """Of VoxCPM2."""

    load_stage = staticmethod(load_prompt)
