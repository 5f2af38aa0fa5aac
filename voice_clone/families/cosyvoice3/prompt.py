"""The talker's prompt: ids of texts, and the speech tokens of a clip. Needs no torch.

The talker reads a start token, what stands before the text, the text, a token that asks for speech, and the speech
tokens of the reference clip, which it continues. `text.py` says what stands before the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from voice_clone.errors import InvalidArgument
from voice_clone.families.cosyvoice3.config import (
    CODES,
    MEL,
    MEL_BANDS,
    MEL_FRAMES,
    SPEAKER,
    SPEAKER_SIZE,
    TOKENS,
    TalkerConfig,
)


@dataclass(frozen=True, eq=False)
class Prompt:
    """One synthesis request for the talker.

    Attributes:
        prefix_ids: int32 [m], the tokens before the text: what is asked for, and the transcript of the clip.
        text_ids: int32 [n], the tokens of the text.
        heard_tokens: uint16 [k], the speech tokens of the clip; none if the talker does not hear it.

    Raises:
        InvalidArgument: on construction, if a shape or a type is wrong.
    """

    prefix_ids: npt.NDArray[np.int32]
    text_ids: npt.NDArray[np.int32]
    heard_tokens: npt.NDArray[np.uint16]

    def __post_init__(self) -> None:
        kinds: dict[str, tuple[Any, int]] = {
            "prefix_ids": (np.int32, 1),
            "text_ids": (np.int32, 1),
            "heard_tokens": (np.uint16, 0),
        }
        for name, (kind, least) in kinds.items():
            array = getattr(self, name)
            if array.dtype != kind or array.ndim != 1 or len(array) < least:
                empty = " and not empty" if least else ""
                raise InvalidArgument(f"{name} must be {np.dtype(kind).name.upper()} of 1 dimension{empty}")

    def check(self, config: TalkerConfig) -> None:
        """Check all values against the checkpoint.

        Raises:
            InvalidArgument: an id is none of the checkpoint's.
        """
        for name in ("prefix_ids", "text_ids"):
            ids = getattr(self, name)
            if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
                raise InvalidArgument(f"{name} must lie in 0..{config.vocab_size - 1}")
        if (self.heard_tokens >= CODES).any():
            raise InvalidArgument(f"heard_tokens must lie in 0..{CODES - 1}")


@dataclass(frozen=True, eq=False)
class Clip:
    """What the decoder gets of the voice, whatever the talker hears.

    Attributes:
        speech_tokens: uint16 [n].
        mel: int16 [2 n, 80], the log-mel spectrogram in steps of 1 / `MEL_STEPS`.
        speaker: float32 [192].

    Raises:
        InvalidArgument: on construction, if a shape, a type or a token is wrong.
    """

    speech_tokens: npt.NDArray[np.uint16]
    mel: npt.NDArray[np.int16]
    speaker: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        tokens, mel = self.speech_tokens, self.mel
        if tokens.dtype != np.uint16 or tokens.ndim != 1 or not len(tokens) or int(tokens.max()) >= CODES:
            raise InvalidArgument(f"{TOKENS} must be UINT16 of 1 dimension, not empty, and lie in 0..{CODES - 1}")
        if mel.dtype != np.int16 or mel.shape != (MEL_FRAMES * len(tokens), MEL_BANDS):
            raise InvalidArgument(f"{MEL} must be INT16 [{MEL_FRAMES * len(tokens)}, {MEL_BANDS}]")
        if self.speaker.dtype != np.float32 or self.speaker.shape != (SPEAKER_SIZE,):
            raise InvalidArgument(f"{SPEAKER} must be FP32 [{SPEAKER_SIZE}]")
