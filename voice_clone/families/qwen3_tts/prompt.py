"""The talker's prompt: the ids of texts, codes and speaker embedding of a voice; and the family's options.

Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.speakers.record import IN_CONTEXT, ArtifactId
from voice_clone.stages.text import check_range

Mode = Literal["icl", "x_vector", "preset", "design"]

EMBEDDING, CODES = "speaker_embedding", "codec_codes"  # artifacts of the voice encoder
ARTIFACT = ArtifactId("qwen3_tts", IN_CONTEXT)

NO_SPEAKER = -1  # in place of a built-in speaker's codec token
ROLE_LENGTH = 3  # `<|im_start|>`, `assistant`, newline


def _no_ids() -> npt.NDArray[np.int32]:
    return np.zeros(0, np.int32)


def _no_codes() -> npt.NDArray[np.int32]:
    return np.zeros((0, 0), np.int32)


@dataclass(frozen=True, eq=False)
class Prompt:
    """One synthesis request for the talker; `mode` says where its voice comes from.

    Attributes:
        role_ids: int32 [3], the tokens of the chat template before the text: `<|im_start|>assistant\\n`.
        text_ids: int32 [n], n >= 1, the text itself without the template's tokens; of an open text what is known so
            far, which may be nothing.
        speaker_embedding: float32 [hidden size]; empty in the modes preset and design.
        reference_ids: int32 [m], the transcript of the reference clip; empty but in mode icl.
        reference_codes: int32 [frames, codebooks], the codec codes of the reference clip; empty but in mode icl.
        language_id: the codec token of the language; None lets the model find out (`Auto`).
        non_streaming_mode: the whole text stands before the first frame, instead of one token a frame.
        text_open: more text may follow.
        speaker_id: the codec token of a built-in speaker; None: the prompt has none.
        instruct_ids: int32 [k], an instruction with the tokens of its template around it; may be empty.

    Raises:
        InvalidArgument: on construction, if a shape, a type or the combination is wrong.
    """

    role_ids: npt.NDArray[np.int32]
    text_ids: npt.NDArray[np.int32]
    speaker_embedding: npt.NDArray[np.float32]
    reference_ids: npt.NDArray[np.int32] = field(default_factory=_no_ids)
    reference_codes: npt.NDArray[np.int32] = field(default_factory=_no_codes)
    language_id: int | None = None
    non_streaming_mode: bool = False
    text_open: bool = False
    speaker_id: int | None = None
    instruct_ids: npt.NDArray[np.int32] = field(default_factory=_no_ids)

    def __post_init__(self) -> None:
        for name in ("role_ids", "text_ids", "reference_ids", "reference_codes", "instruct_ids"):
            array, ndim = getattr(self, name), 2 if name == "reference_codes" else 1
            if array.dtype != np.int32 or array.ndim != ndim:
                raise InvalidArgument(f"{name} must be INT32 of {ndim} dimension(s)")
        if self.role_ids.shape[0] != ROLE_LENGTH:
            raise InvalidArgument(f"role_ids must hold {ROLE_LENGTH} ids")
        if self.text_ids.shape[0] == 0 and not self.text_open:
            raise InvalidArgument("the `text` is empty; it must hold at least one token")
        if self.text_open and self.non_streaming_mode:
            raise InvalidArgument("`non_streaming_mode` needs the whole text at once; leave out `text_stream` or it")
        if self.speaker_embedding.dtype != np.float32 or self.speaker_embedding.ndim != 1:
            raise InvalidArgument("`speaker_embedding` must be FP32 of 1 dimension")
        if not np.isfinite(self.speaker_embedding).all():
            raise InvalidArgument("`speaker_embedding` must be finite; it holds NaN or infinity")
        if (self.reference_ids.shape[0] == 0) != (self.reference_codes.shape[0] == 0):
            raise InvalidArgument("reference codes and the transcript of the reference need each other")
        if self.speaker_embedding.shape[0] and self.speaker_id is not None:
            raise InvalidArgument("a prompt has a speaker_embedding or a speaker_id, not both")
        if self.reference_ids.shape[0] and not self.speaker_embedding.shape[0]:
            raise InvalidArgument("the reference of a voice needs its speaker_embedding")

    @property
    def mode(self) -> Mode:
        return mode_of(self.reference_codes, self.speaker_embedding, self.speaker_id)

    def check(self, config: Qwen3TTSConfig) -> None:
        """Check all values against the checkpoint.

        Raises:
            InvalidArgument: an id or a code is out of the checkpoint's range, language or speaker is unknown, the voice
                comes from where this kind of checkpoint has none, or the embedding has another dimension.
        """
        talker = config.talker
        for name in ("role_ids", "text_ids", "reference_ids", "instruct_ids"):
            check_range(name, getattr(self, name), talker.text_vocab_size)
        dimension = self.speaker_embedding.shape[0]
        if dimension not in (talker.hidden_size, 0) or (dimension == 0) == (config.kind == "base"):
            needed = talker.hidden_size if config.kind == "base" else 0
            raise InvalidArgument(f"`speaker_embedding` has {dimension} values; this model needs {needed}")
        if (self.speaker_id is not None) != (config.kind == "custom_voice"):
            raise InvalidArgument("speaker_id is for CustomVoice checkpoints, which need one")
        if self.speaker_id is not None and self.speaker_id not in config.speakers.values():
            raise InvalidArgument("speaker_id is no speaker of this model")
        if self.mode == "icl":
            books = self.reference_codes.shape[1]
            if books != talker.num_code_groups:
                raise InvalidArgument(f"reference codes have {books} codebooks; expected {talker.num_code_groups}")
            check_range("reference_codes", self.reference_codes, config.codec.decoder_config.codebook_size)
        if self.language_id is not None and self.language_id not in talker.codec_language_id.values():
            raise InvalidArgument("language_id is no language of this model")


def mode_of(
    reference_codes: npt.NDArray[np.int32], speaker_embedding: npt.NDArray[np.float32], speaker_id: int | None
) -> Mode:
    """In context if there are codes of a reference; else by an embedding, a built-in speaker, or words alone."""
    if len(reference_codes):
        return "icl"
    if len(speaker_embedding):
        return "x_vector"
    return "design" if speaker_id is None else "preset"
