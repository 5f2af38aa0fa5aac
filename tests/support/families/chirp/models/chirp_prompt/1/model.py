"""Text and voice to the talker's prompt: tokenises, checks, asks speaker_cache."""

from tests.support.families.chirp.prompt_stage import load_prompt
from voice_clone.triton.stages.prompt import PromptModel


class TritonPythonModel(PromptModel):
    """Of chirp."""

    load_stage = staticmethod(load_prompt)
