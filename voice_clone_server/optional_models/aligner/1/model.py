"""Says when each word of a speech is spoken."""

from voice_clone.triton.stages.aligner import AlignerModel


class TritonPythonModel(AlignerModel):
    """The model that Triton loads."""
