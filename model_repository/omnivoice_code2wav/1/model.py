"""Codec frames to audio, chunk by chunk."""

from voice_clone.families.omnivoice.codec import load_decoder
from voice_clone.triton.stages.code2wav import Code2WavModel


class TritonPythonModel(Code2WavModel):
    """Of OmniVoice."""

    load_stage = staticmethod(load_decoder)
