"""The talker's prompt: ids of texts, and the speech tokens of a clip. Needs no torch.

The talker reads a start token, what stands before the text, the text, a token that asks for speech, and the speech
tokens of the reference clip, which it continues. `text.py` says what stands before the text.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from voice_clone.stages.text import check_ids, check_range


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
        check_ids("prefix_ids", self.prefix_ids)
        check_ids("text_ids", self.text_ids)
        if self.heard_tokens.dtype != np.uint16 or self.heard_tokens.ndim != 1:
            raise InvalidArgument("heard_tokens must be UINT16 of 1 dimension")

    def check(self, config: TalkerConfig) -> None:
        """Check all values against the checkpoint.

        Raises:
            InvalidArgument: an id is none of the checkpoint's.
        """
        check_range("prefix_ids", self.prefix_ids, config.vocab_size)
        check_range("text_ids", self.text_ids, config.vocab_size)
        check_range("heard_tokens", self.heard_tokens, CODES)


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
