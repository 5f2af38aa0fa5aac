"""The fields of a speech. Written by tools/models.py from voice_clone/request_fields.py; change that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

SOURCES = ("voice", "reference_audio", "speaker_embedding", "voice_prompt")
"""Those that say whose voice it is; a request has one."""
DTYPES = {
    "speaker_embedding": "FP32",
    "x_vector_only": "BOOL",
    "seed": "UINT64",
    "max_frames": "INT32",
    "temperature": "FP32",
    "top_k": "INT32",
    "top_p": "FP32",
    "repetition_penalty": "FP32",
    "do_sample": "BOOL",
    "non_streaming_mode": "BOOL",
    "cache": "BOOL",
}
"""Triton's type of each that is no string."""
MEANINGS = {
    "language": "a language of the checkpoint, such as English, en or en-US; Auto: the model finds it out",
    "style": "a style of the voice: the name of one of its clips, or several with commas: the first that it has",
    "seed": "the same seed gives the same audio (from 0 to 2**64 - 1)",
    "max_frames": "the longest speech, in frames of the model (at least 1)",
    "temperature": "temperature of the sampling (above 0)",
    "top_k": "how many of the most likely values to sample from; 0: all (at least 0)",
    "top_p": "sample from the most likely values that have this share of the probability (above 0 and at most 1)",
    "repetition_penalty": "above 1: repetitions are less likely (above 0)",
    "do_sample": "false: take the most likely value in each step",
    "non_streaming_mode": "true: read the whole text before the first frame",
    "cache": "false: neither use nor keep in memory what is computed of the voice",
    "options": "a JSON object: parameters that only this family has",
}
"""What each knob is, and the numbers that it may be."""


class Knobs(TypedDict, total=False):
    """How the server speaks a text. A knob that is absent or None takes the default of the server's checkpoint."""

    language: str | None
    """A language of the checkpoint, such as English, en or en-US; Auto: the model finds it out."""
    style: str | None
    """A style of the voice: the name of one of its clips, or several with commas: the first that it has."""
    seed: int | None
    """The same seed gives the same audio (from 0 to 2**64 - 1)."""
    max_frames: int | None
    """The longest speech, in frames of the model (at least 1)."""
    temperature: float | None
    """Temperature of the sampling (above 0)."""
    top_k: int | None
    """How many of the most likely values to sample from; 0: all (at least 0)."""
    top_p: float | None
    """Sample from the most likely values that have this share of the probability (above 0 and at most 1)."""
    repetition_penalty: float | None
    """Above 1: repetitions are less likely (above 0)."""
    do_sample: bool | None
    """False: take the most likely value in each step."""
    non_streaming_mode: bool | None
    """True: read the whole text before the first frame."""
    cache: bool | None
    """False: neither use nor keep in memory what is computed of the voice."""
    options: Mapping[str, Any] | None
    """A JSON object: parameters that only this family has."""
