"""The fields of a speech request, in one table. The public models of all families have them as inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RequestField:
    """An input of the public models.

    Attributes:
        dtype: Triton's, without `TYPE_`.
        meaning: one line, for people who read a configuration.
        stages: those that read it.
        size: of its one dimension; -1: any.
    """

    name: str
    dtype: Literal["STRING", "BOOL", "INT32", "UINT64", "FP32"]
    meaning: str
    stages: tuple[Literal["prompt", "talker"], ...] = ("prompt",)
    size: int = 1


FIELDS = (
    RequestField("text", "STRING", "what is said; required"),
    RequestField("text_stream", "STRING", "an id that the caller made: more text follows by appends to the talker"),
    RequestField("voice", "STRING", "a registered voice, or one that the checkpoint brings"),
    RequestField("reference_audio", "STRING", "a clip of the voice: the bytes of its file, or a data: URL"),
    RequestField("reference_text", "STRING", "the words spoken in reference_audio"),
    RequestField("voice_prompt", "STRING", "a bundle of one voice, as an export gives it"),
    RequestField("cache", "BOOL", "false: neither use nor keep in memory what is computed of the voice"),
    RequestField("speaker_embedding", "FP32", "in place of a clip, of the model's size", size=-1),
    RequestField("x_vector_only", "BOOL", "true: by the speaker embedding only; false: in context or not at all"),
    RequestField("language", "STRING", "a name or code; Auto: the model finds it out"),
    RequestField("non_streaming_mode", "BOOL", "true: read the whole text before the first frame", ("talker",)),
    RequestField("temperature", "FP32", "of the sampling, above 0", ("talker",)),
    RequestField("top_p", "FP32", "probability that the most likely values share, above 0, at most 1", ("talker",)),
    RequestField("repetition_penalty", "FP32", "above 1: repetitions are less likely", ("talker",)),
    RequestField("top_k", "INT32", "how many of the most likely values to sample from; 0: all", ("talker",)),
    RequestField("max_frames", "INT32", "the longest speech, in frames of the model", ("talker",)),
    RequestField("seed", "UINT64", "the same seed gives the same audio", ("talker",)),
    RequestField("do_sample", "BOOL", "false: take the most likely value in each step", ("talker",)),
    RequestField("options", "STRING", "a JSON object: parameters that only this family has", ("prompt", "talker")),
)

KNOBS = tuple(each.name for each in FIELDS if each.stages == ("talker",))
"""The knobs that all families have as tensors of their own; each refuses what it cannot do."""
