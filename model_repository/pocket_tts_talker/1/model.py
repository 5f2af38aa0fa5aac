"""Prompt to a stream of frames of latents."""

from voice_clone.families.pocket_tts.talker import load_talker
from voice_clone.triton.stages.talker import TalkerModel


class TritonPythonModel(TalkerModel):
    """Of Pocket TTS."""

    load_stage = staticmethod(load_talker)
