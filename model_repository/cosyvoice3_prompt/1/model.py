"""Text and voice to the talker's prompt: tokenises, checks, asks speaker_cache."""

from voice_clone.families.cosyvoice3.prompt import load_prompt
from voice_clone.triton.stages.prompt import PromptModel


class TritonPythonModel(PromptModel):
    """Of CosyVoice3."""

    load_stage = staticmethod(load_prompt)
