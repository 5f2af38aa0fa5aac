"""The registered voices: upload, get, list, delete, prepare, resolve, stats, export, import."""

from voice_clone.triton.stages.speaker_cache import SpeakerCacheModel


class TritonPythonModel(SpeakerCacheModel):
    """The model that Triton loads."""
