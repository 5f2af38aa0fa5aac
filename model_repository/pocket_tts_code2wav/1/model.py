"""Frames of latents to audio, chunk by chunk."""

from voice_clone.families.pocket_tts.codec import load_decoder
from voice_clone.triton.stages.code2wav import Code2WavModel


class TritonPythonModel(Code2WavModel):
    """Of Pocket TTS."""

    load_stage = staticmethod(load_decoder)
