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

Mode = Literal["icl", "x_vector"]

EMBEDDING, CODES = "speaker_embedding", "codec_codes"  # artifacts of the voice encoder
ARTIFACT = ArtifactId("qwen3_tts", IN_CONTEXT)

OPTIONS: dict[str, type] = {
    "subtalker_do_sample": bool,
    "subtalker_temperature": float,
    "subtalker_top_k": int,
    "subtalker_top_p": float,
}
"""Names and types: how codebooks 1..15 are drawn. `SamplingParameters` checks the ranges."""

ROLE_LENGTH = 3  # `<|im_start|>`, `assistant`, newline


def _no_ids() -> npt.NDArray[np.int32]:
    return np.zeros(0, np.int32)


def _no_codes() -> npt.NDArray[np.int32]:
    return np.zeros((0, 0), np.int32)


@dataclass(frozen=True, eq=False)
class Prompt:
    """One synthesis request for the talker. Mode `icl` if it has reference codes, else `x_vector`.

    Attributes:
        role_ids: int32 [3], the tokens of the chat template before the text: `<|im_start|>assistant\\n`.
        text_ids: int32 [n], n >= 1, the text itself without the template's tokens; of an open text what is known so
            far, which may be nothing.
        speaker_embedding: float32 [hidden size].
        reference_ids: int32 [m], the transcript of the reference clip; empty in mode x_vector.
        reference_codes: int32 [frames, codebooks], the codec codes of the reference clip; empty in mode x_vector.
        language_id: the codec token of the language; None lets the model find out (`Auto`).
        non_streaming_mode: the whole text stands before the first frame, instead of one token a frame.
        text_open: more text may follow.

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

    def __post_init__(self) -> None:
        for name, ndim in (("role_ids", 1), ("text_ids", 1), ("reference_ids", 1), ("reference_codes", 2)):
            array = getattr(self, name)
            if array.dtype != np.int32 or array.ndim != ndim:
                raise InvalidArgument(f"{name} must be INT32 of {ndim} dimension(s)")
        if self.role_ids.shape[0] != ROLE_LENGTH:
            raise InvalidArgument(f"role_ids must hold {ROLE_LENGTH} ids")
        if self.text_ids.shape[0] == 0 and not self.text_open:
            raise InvalidArgument("the text is empty; it must hold at least one token")
        if self.text_open and self.non_streaming_mode:
            raise InvalidArgument("non_streaming_mode needs the whole text at once; leave out text_stream or it")
        if self.speaker_embedding.dtype != np.float32 or self.speaker_embedding.ndim != 1:
            raise InvalidArgument("speaker_embedding must be FP32 of 1 dimension")
        if not np.isfinite(self.speaker_embedding).all():
            raise InvalidArgument("speaker_embedding must be finite; it holds NaN or infinity")
        if (self.reference_ids.shape[0] == 0) != (self.reference_codes.shape[0] == 0):
            raise InvalidArgument("reference codes and the transcript of the reference need each other")

    @property
    def mode(self) -> Mode:
        return mode_of(self.reference_codes)

    def check(self, config: Qwen3TTSConfig) -> None:
        """Check all values against the checkpoint.

        Raises:
            InvalidArgument: an id or a code is out of the checkpoint's range, the language is unknown, or the embedding
                has another dimension.
        """
        talker = config.talker
        for name in ("role_ids", "text_ids", "reference_ids"):
            _check_range(name, getattr(self, name), talker.text_vocab_size)
        dimension = self.speaker_embedding.shape[0]
        if dimension != talker.hidden_size:
            raise InvalidArgument(f"speaker_embedding has {dimension} values; this model needs {talker.hidden_size}")
        if self.mode == "icl":
            books = self.reference_codes.shape[1]
            if books != talker.num_code_groups:
                raise InvalidArgument(f"reference codes have {books} codebooks; expected {talker.num_code_groups}")
            _check_range("reference_codes", self.reference_codes, config.codec.decoder_config.codebook_size)
        if self.language_id is not None and self.language_id not in talker.codec_language_id.values():
            raise InvalidArgument("language_id is no language of this model")


def mode_of(reference_codes: npt.NDArray[np.int32]) -> Mode:
    """How a voice is used: in context if there are codes of its reference, else by its speaker embedding alone."""
    return "icl" if len(reference_codes) else "x_vector"


def _check_range(name: str, ids: npt.NDArray[np.int32], limit: int) -> None:
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= limit):
        raise InvalidArgument(f"{name} must lie in 0..{limit - 1}")
