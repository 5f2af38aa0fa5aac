"""A text with pauses, several voices, markup, pronunciations and numbers as one speech of any family."""

from voice_clone.triton.stages.text_front_end import TextFrontEndModel


class TritonPythonModel(TextFrontEndModel):
    """The model that Triton loads."""
