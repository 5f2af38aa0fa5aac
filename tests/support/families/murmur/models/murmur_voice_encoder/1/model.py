"""No encoder, and why."""

from tests.support.families.murmur.stages import load_encoder
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of murmur."""

    stage = "voice_encoder"
    load_stage = staticmethod(load_encoder)
