"""Codec frames to audio, chunk by chunk."""

from tests.support.families.chirp.decoder_stage import load_decoder
from voice_clone.triton.stages.code2wav import Code2WavModel


class TritonPythonModel(Code2WavModel):
    """Of chirp."""

    load_stage = staticmethod(load_decoder)
