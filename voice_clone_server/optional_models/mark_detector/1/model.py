"""Looks for the mark of synthetic speech in an audio file."""

from voice_clone.triton.stages.mark_detector import MarkDetectorModel


class TritonPythonModel(MarkDetectorModel):
    """The model that Triton loads."""
