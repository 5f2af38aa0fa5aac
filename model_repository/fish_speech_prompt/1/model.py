"""Text and voice to the talker's prompt: tokenises, checks, asks speaker_cache."""

from voice_clone.families.fish_speech.prompt import load_prompt
from voice_clone.triton.stages.prompt import PromptModel


class TritonPythonModel(PromptModel):
    """Of Fish Speech S2 Pro."""

    load_stage = staticmethod(load_prompt)
