"""Writes down the words spoken in a clip."""

from voice_clone.triton.stages.transcriber import TranscriberModel


class TritonPythonModel(TranscriberModel):
    """The model that Triton loads."""
