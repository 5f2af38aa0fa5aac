"""The talker's prompt: the ids of texts and the codes of a voice. Needs no torch.

The talker reads tokens, then the frames of the reference clip, then tokens. `text.py` says which.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voice_clone.errors import InvalidArgument
from voice_clone.families.fish_speech.config import FishSpeechConfig
from voice_clone.speakers.record import IN_CONTEXT, ArtifactId
from voice_clone.stages.text import check_ids, check_range

CODES = "codec_codes"  # the artifact of the voice encoder
ARTIFACT = ArtifactId("fish_speech", IN_CONTEXT)


@dataclass(frozen=True, eq=False)
class Prompt:
    """One synthesis request for the talker.

    Attributes:
        reference_ids: int32 [m], the tokens before the frames: instruction and transcript.
        reference_codes: uint16 [frames, codebooks], of the reference clip.
        text_ids: int32 [n], the tokens after the frames: the text, and the beginning of the answer.

    Raises:
        InvalidArgument: on construction, if a shape or a type is wrong.
    """

    reference_ids: npt.NDArray[np.int32]
    reference_codes: npt.NDArray[np.uint16]
    text_ids: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        check_ids("reference_ids", self.reference_ids)
        check_ids("text_ids", self.text_ids)
        codes = self.reference_codes
        if codes.dtype != np.uint16 or codes.ndim != 2 or not len(codes):
            raise InvalidArgument("reference_codes must be UINT16 of 2 dimensions and not empty")

    def check(self, config: FishSpeechConfig) -> None:
        """Check all values against the checkpoint.

        Raises:
            InvalidArgument: an id or a code is out of the checkpoint's range.
        """
        check_range("reference_ids", self.reference_ids, config.text_config.vocab_size)
        check_range("text_ids", self.text_ids, config.text_config.vocab_size)
        limits = np.array(config.code_limits)
        if self.reference_codes.shape[1] != len(limits):
            raise InvalidArgument(
                f"reference codes have {self.reference_codes.shape[1]} codebooks; expected {len(limits)}"
            )
        if (self.reference_codes >= limits).any():
            raise InvalidArgument(f"reference codes must lie in 0..{limits.min() - 1} or more, by codebook")
