"""Text and voice to the talker's prompt."""

from tests.support.families.murmur.stages import load_prompt
from voice_clone.triton.stages.prompt import PromptModel


class TritonPythonModel(PromptModel):
    """Of murmur."""

    load_stage = staticmethod(load_prompt)
