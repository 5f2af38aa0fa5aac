"""Frames to audio, chunk by chunk."""

from tests.support.families.murmur.stages import load_decoder
from voice_clone.triton.stages.code2wav import Code2WavModel


class TritonPythonModel(Code2WavModel):
    """Of murmur."""

    load_stage = staticmethod(load_decoder)
