"""The fields of a speech as JSON. Written by tools/models.py from voice_clone/request_fields.py; change that."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field
from voice_clone_client.types import MAX_NAME

ALIASES = {
    "speaker": "voice",
    "ref_audio": "reference_audio",
    "ref_text": "reference_text",
    "x_vector_only_mode": "x_vector_only",
    "max_new_tokens": "max_frames",
}
"""Other names of fields."""


class Knobs(BaseModel, strict=True, use_attribute_docstrings=True):
    """How the server speaks a text."""

    language: Annotated[str, Field(max_length=MAX_NAME)] | None = None
    """A language of the checkpoint, such as English, en or en-US; Auto: the model finds it out."""
    style: Annotated[str, Field(max_length=MAX_NAME)] | None = None
    """A style of the voice: the name of one of its clips, or several with commas: the first that it has."""
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    """The same seed gives the same audio (from 0 to 2**64 - 1)."""
    max_frames: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """The longest speech, in frames of the model (at least 1). Another name: max_new_tokens."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Temperature of the sampling (above 0)."""
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """How many of the most likely values to sample from; 0: all (at least 0)."""
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    """Sample from the most likely values that have this share of the probability (above 0 and at most 1)."""
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Above 1: repetitions are less likely (above 0)."""
    do_sample: bool | None = None
    """False: take the most likely value in each step."""
    non_streaming_mode: bool | None = None
    """True: read the whole text before the first frame."""
    cache: bool | None = None
    """False: neither use nor keep in memory what is computed of the voice."""
