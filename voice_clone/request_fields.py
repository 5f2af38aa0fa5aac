"""The fields of a speech request, in one table. The public models of all families have them as inputs.

tools/fields.py writes from it what the client, the gateway and the documents say of them.
"""

from __future__ import annotations

import sys
from typing import Literal, NamedTuple


class RequestField(NamedTuple):
    """An input of the public models.

    Attributes:
        dtype: Triton's, without `TYPE_`.
        meaning: one line, for people who read a configuration, a document or a help.
        role: what it is of a speech: its text, the source of its voice, more of that voice, or how it is spoken.
        stages: those that read it.
        size: of its one dimension; -1: any.
        least, most: of a number, both allowed.
        above: of a number, not allowed itself.
        aliases: its names in requests that were made for other servers.
    """

    name: str
    dtype: Literal["STRING", "BOOL", "INT32", "UINT64", "FP32"]
    meaning: str
    role: Literal["text", "source", "voice", "knob"]
    stages: tuple[Literal["prompt", "talker"], ...] = ("prompt",)
    size: int = 1
    least: int | None = None
    most: int | None = None
    above: int | None = None
    aliases: tuple[str, ...] = ()

    @property
    def range(self) -> str:
        """The numbers that it may be, in words; empty: it is no number, or any one."""
        most = "2**64 - 1" if self.most == 2**64 - 1 else self.most
        if self.least is not None:
            return f"at least {self.least}" if most is None else f"from {self.least} to {most}"
        ends = ("" if self.above is None else f"above {self.above}", "" if most is None else f"at most {most}")
        return " and ".join(filter(None, ends))

    def has(self, value: float) -> bool:
        """Whether a number lies in the range. NaN, infinity and a whole number too large for a float do not."""
        if self.dtype == "FP32" and not abs(value) <= sys.float_info.max:
            return False
        least = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        return least and (self.most is None or value <= self.most)


FIELDS = (
    RequestField("text", "STRING", "what is said; required", "text"),
    RequestField(
        "text_stream", "STRING", "an id that the caller made: more text follows by appends to the talker", "text"
    ),
    RequestField(
        "voice", "STRING", "a registered voice, or one that the checkpoint brings", "source", aliases=("speaker",)
    ),
    RequestField(
        "reference_audio",
        "STRING",
        "a clip of the voice: the bytes of its file, or a data: URL",
        "source",
        aliases=("ref_audio",),
    ),
    RequestField("speaker_embedding", "FP32", "in place of a clip, of the model's size", "source", size=-1),
    RequestField("voice_prompt", "STRING", "a bundle of one voice, as an export gives it", "source"),
    RequestField("reference_text", "STRING", "the words spoken in reference_audio", "voice", aliases=("ref_text",)),
    RequestField(
        "x_vector_only",
        "BOOL",
        "true: by the speaker embedding only; false: in context or not at all",
        "voice",
        aliases=("x_vector_only_mode",),
    ),
    RequestField(
        "language",
        "STRING",
        "a language of the checkpoint, such as English, en or en-US; Auto: the model finds it out",
        "knob",
    ),
    RequestField(
        "style",
        "STRING",
        "a style of the voice: the name of one of its clips, or several with commas: the first that it has",
        "knob",
    ),
    RequestField("seed", "UINT64", "the same seed gives the same audio", "knob", ("talker",), least=0, most=2**64 - 1),
    RequestField(
        "max_frames",
        "INT32",
        "the longest speech, in frames of the model",
        "knob",
        ("talker",),
        least=1,
        aliases=("max_new_tokens",),
    ),
    RequestField("temperature", "FP32", "temperature of the sampling", "knob", ("talker",), above=0),
    RequestField(
        "top_k", "INT32", "how many of the most likely values to sample from; 0: all", "knob", ("talker",), least=0
    ),
    RequestField(
        "top_p",
        "FP32",
        "sample from the most likely values that have this share of the probability",
        "knob",
        ("talker",),
        above=0,
        most=1,
    ),
    RequestField("repetition_penalty", "FP32", "above 1: repetitions are less likely", "knob", ("talker",), above=0),
    RequestField("do_sample", "BOOL", "false: take the most likely value in each step", "knob", ("talker",)),
    RequestField("non_streaming_mode", "BOOL", "true: read the whole text before the first frame", "knob", ("talker",)),
    RequestField("cache", "BOOL", "false: neither use nor keep in memory what is computed of the voice", "knob"),
    RequestField(
        "options", "STRING", "a JSON object: parameters that only this family has", "knob", ("prompt", "talker")
    ),
)

SOURCES = tuple(each.name for each in FIELDS if each.role == "source")
"""Those that say whose voice it is; a request has one."""
KNOBS = tuple(each.name for each in FIELDS if each.stages == ("talker",))
"""The knobs that all families have as tensors of their own; each refuses what it cannot do."""
