"""A whole speech of any family in one answer."""

from voice_clone.triton.stages.speech_whole import WholeSpeechModel


class TritonPythonModel(WholeSpeechModel):
    """The model that Triton loads."""
